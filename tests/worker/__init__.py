"""Tests of a worker: claims, attempts, commits, leases, durable calls."""
