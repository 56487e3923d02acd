"""Boxes without isolation: commands as plain processes of the host, killed with proof."""
