"""The API that a user’s code sees."""
