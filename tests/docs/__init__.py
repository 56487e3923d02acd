"""The documentation: its code runs, its links are valid, and it is complete."""
