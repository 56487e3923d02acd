"""The client of a server."""
