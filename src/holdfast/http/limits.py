"""The limits that a server sets its clients. Knows nothing of the web framework."""

from __future__ import annotations

from msgspec import Struct


class ServerLimits(Struct, frozen=True, kw_only=True):
    """How much a server accepts."""

    body_bytes: int = 8 * 1024 * 1024
    bodies_bytes: int = 64 * 1024 * 1024
    """How many bytes of bodies are held at once, for all requests; one token may hold a fourth."""
    body_seconds: float = 20.0
    """How long a body may take to arrive."""
    head_seconds: float = 10.0
    """How long the head of a request may take to arrive."""
    idle_seconds: int = 60
    """How long an idle connection is kept."""
    unread_seconds: float = 30.0
    """How long a client may read nothing of what it is sent."""
    connections: int = 4000
    """How many connections are held at once."""
    requests: int = 2000
    """How many requests may be under way at once, long polls and streams among them.

    One token may have a fourth of them, all tokens of one tenant a half.
    """
    streams: int = 1000
    """How many streams of events may be open at once; shared in the same way."""
    uploads: int = 64
    """How many bodies may be streamed at once; shared in the same way."""
    upload_idle_seconds: float = 30.0
    """How long the sender of such a body may pause."""
    requests_per_second: float = 500.0
    """How many requests one token may send; 0 sets no limit."""
    burst: int = 1000
    """How many requests of one token may come at once."""
