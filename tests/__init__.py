"""The tests, as packages, so that they can import tests.support."""
