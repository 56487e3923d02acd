"""Tests of the rules that admit jobs."""
