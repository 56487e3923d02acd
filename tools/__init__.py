"""What the Makefile calls: checks, generated files, the list of requirements. Never shipped."""
