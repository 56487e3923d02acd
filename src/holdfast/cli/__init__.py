"""The command line: a surface, no more. Each command is a module of its own beside `main`."""
