"""Exits when imported."""

import sys

sys.exit(7)
