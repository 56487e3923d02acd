"""Durable jobs for agents, commands and functions: one lifecycle, enforced by the store."""

__version__ = "0.1.0"
