"""Workers over HTTP: what they report, what they are assigned, and how they wait for it."""
