"""The operations: on a store at hand, and through a server."""
