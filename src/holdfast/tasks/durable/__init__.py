"""Durable functions: steps, waits and children that are remembered across attempts."""
