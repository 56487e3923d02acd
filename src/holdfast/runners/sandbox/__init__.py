"""Boxes of bubblewrap: a root, a uid, namespaces and limits of their own, without an image."""
