"""A tutorial that is run: read the files from top to bottom, one concept each.

Everything here uses Holdfast as its users do: `from holdfast import …`, and the test kit.
"""
