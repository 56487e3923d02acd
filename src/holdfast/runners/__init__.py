"""Runners: adapters to what runs a handler."""
