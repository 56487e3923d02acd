"""The loops: each does what is due, and reports how it goes."""
