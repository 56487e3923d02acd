"""Tests of the loops: reconciler, janitor, webhook delivery."""
