"""Why: what a job is doing, why it is not running, and who caused that."""
