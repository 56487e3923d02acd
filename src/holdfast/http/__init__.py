"""The HTTP surface: jobs, queues, dead letters and workers for whoever has no database."""
