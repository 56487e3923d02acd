"""Reads for people: histories, outcomes, dead letters, and why a job is in its state."""
