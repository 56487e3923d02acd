"""Buses: adapters that carry jobs to workers elsewhere by messages."""
