"""Webhooks: what they are told, how often, and where they may not lead."""
