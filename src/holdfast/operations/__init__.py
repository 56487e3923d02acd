"""The operations on jobs: their requests, their results, and what carries them out."""
