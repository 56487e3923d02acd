"""The one error for what this machine cannot offer, such as a mount or a missing server."""


class Unavailable(Exception):
    """The machine lacks something a test needs; the message says what, and how to get it."""
