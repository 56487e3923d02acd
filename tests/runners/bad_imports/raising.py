"""Raises when imported."""

raise RuntimeError("out of order")
