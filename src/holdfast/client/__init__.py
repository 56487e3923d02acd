"""The client of a server: its requests, the operations over them, and `holdfast.Client`."""
