"""Which modules a job's path crosses, as a profiler sees them; `path.md` is the list."""
