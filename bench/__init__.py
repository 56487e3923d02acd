"""Benchmarks: what the stores cost, measured against hand-written SQL in the same run."""
