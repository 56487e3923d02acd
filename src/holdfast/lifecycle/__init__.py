"""The pure lifecycle: what a job is, what may happen to it, and what follows.

No I/O, no clock, no randomness: times are symbolic, jitter and ids are handed in.
"""
