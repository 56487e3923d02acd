"""Tests of what runs a handler: on the loop, in a thread, in a process of its own."""
