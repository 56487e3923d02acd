"""Tests of what is in `examples`."""
