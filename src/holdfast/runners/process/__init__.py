"""Handlers in processes of their own, kept warm by a worker."""
