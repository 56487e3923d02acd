"""The loops: each looks, does what is due, and says how it goes."""
