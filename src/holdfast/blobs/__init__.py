"""Where large data is kept: a local directory, or an object store."""
