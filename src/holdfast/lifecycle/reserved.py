"""Names of tasks and queues that only Holdfast's own services may use.

A job of such a task acts with the server's rights: it sends signed requests to webhooks. So no
caller may submit one, serve its queue or register its task.
"""

from __future__ import annotations

from holdfast.errors import ReservedName

PREFIX = "holdfast."
"""The prefix of every reserved name of a task or queue."""


def is_reserved(name: str) -> bool:
    """Return whether a task's or queue's name is Holdfast's own."""
    return name.startswith(PREFIX)


def check_not_reserved(name: str, what: str) -> str:
    """Return the name, or raise ReservedName; `what` is the field it was given in."""
    if is_reserved(name):
        raise ReservedName(
            f"{what} {name!r} is reserved: names that start with {PREFIX!r} are used by Holdfast's "
            "own services; choose another name",
        )
    return name
