"""Tests of the care of the ledger."""
