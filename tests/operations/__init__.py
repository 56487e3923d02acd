"""The operations on a store at hand."""
