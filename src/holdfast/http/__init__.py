"""The HTTP surface: jobs, queues, dead letters and workers for clients without a database."""
