"""Rules that admit, deny or delay a job, and where topics lead; pure."""
