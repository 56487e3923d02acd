"""Commands from submit to end, on real boxes and both stores."""
