"""Tests of the flow: read, decide, commit."""
