"""Tests of the rules that admit jobs, and of where topics lead."""
