"""The pipeline of a worker: claim jobs, run them, commit what came of them, keep their leases."""
