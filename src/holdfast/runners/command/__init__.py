"""Commands: jobs that run a program in a box, with whatever runs boxes on this host."""
