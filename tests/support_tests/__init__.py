"""Tests of the test support itself."""
