"""Containers of Podman as boxes, with the real Podman in a storage of its own."""
