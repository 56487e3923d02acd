"""What runs boxes as children of the worker: one process tree per box, its output, its end."""
