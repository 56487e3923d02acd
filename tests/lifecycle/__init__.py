"""Tests of the pure law."""
