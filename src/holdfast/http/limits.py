"""How much of its clients' a server takes. Knows nothing of the web framework."""

from __future__ import annotations

from msgspec import Struct


class Limits(Struct, frozen=True, kw_only=True):
    """How much of one client's the server takes."""

    body_bytes: int = 8 * 1024 * 1024
    bodies_bytes: int = 64 * 1024 * 1024
    """How many bytes of bodies are held at once, of all requests; one token holds a fourth."""
    body_seconds: float = 20.0
    """How long a body may take to arrive."""
    head_seconds: float = 10.0
    """How long the head of a request may take to arrive."""
    idle_seconds: int = 60
    """How long a connection is kept on which nothing is asked."""
    unread_seconds: float = 30.0
    """How long a client may take nothing of what it is sent."""
    connections: int = 4000
    """How many connections are held at once."""
    requests: int = 2000
    """How many requests may be under way at once, long polls and streams among them.

    One token may have a fourth of them, all tokens of one tenant a half.
    """
    streams: int = 1000
    """How many streams of events may be open at once; shared out in the same way."""
    requests_per_second: float = 500.0
    """How often one token may ask; 0 sets no limit."""
    burst: int = 1000
    """How many requests of one token may come at once."""
