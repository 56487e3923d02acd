"""Boxes as containers: the port of boxes over Podman's command line."""
