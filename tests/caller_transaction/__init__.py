"""Submit inside the caller's own transaction, with every driver and on both engines."""
