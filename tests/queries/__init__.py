"""Tests of what reads for people: histories, dead letters, why."""
