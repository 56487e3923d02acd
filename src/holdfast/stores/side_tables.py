"""What is wrong with tables beside the ledger: queues, marks, signals, tokens, … Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.lifecycle.times import SECOND
from holdfast.ports import QueueEvent, QueueStatus
from holdfast.stores.quarantine import UNREADABLE

Row = Sequence[Any]
APART = 60 * SECOND
"""How far apart a pause and its entry may be: PostgreSQL reads the clock for each."""


def queue_problems(queues: Sequence[QueueStatus], log: Sequence[QueueEvent]) -> list[str]:
    """Compare each queue with the last entry of the queues' ledger."""
    last = {event.queue: event for event in log}
    problems = [_queue_problem(queue, last.get(queue.name)) for queue in queues]
    known = {queue.name for queue in queues}
    lost = [f"queue {name!r} has entries in the queues' ledger and no row" for name in last
            if name not in known]  # fmt: skip
    return [problem for problem in problems if problem is not None] + lost


def _queue_problem(queue: QueueStatus, last: QueueEvent | None) -> str | None:
    if last is None:
        return f"queue {queue.name!r} has no entry in the queues' ledger"
    if last.type == "paused":
        is_as_entered = (
            queue.paused_at is not None
            and abs(queue.paused_at - last.at) < APART
            and (queue.paused_by, queue.reason) == (last.actor, last.reason)
        )
    else:
        is_as_entered = (queue.paused_at, queue.paused_by, queue.reason) == (None, None, None)
    if is_as_entered:
        return None
    is_paused = "paused" if queue.paused_at is not None else "not paused"
    return f"queue {queue.name!r} is {is_paused}, its ledger says {last.type} by {last.actor!r}"


def mark_problems(rows: Sequence[Row]) -> list[str]:
    """Name marks of jobs that are not there."""
    return [f"mark {number} is of job {id_}, which is not there" for number, id_ in rows]


def signal_problems(ids: Sequence[Any]) -> list[str]:
    """Name jobs that have pending signals, and count none or are not there."""
    return [f"there are pending signals of job {id_}, which counts none" for id_ in ids]


def row_problems(what: str, rows: Sequence[Row], read: Callable[[Row], Any]) -> list[str]:
    """Name rows that cannot be read; the first column names each."""
    problems = []
    for row in rows:
        try:
            read(row)
        except (*UNREADABLE, HoldfastError) as error:
            problems.append(f"{what} {row[0]!r} cannot be read: {error}")
    return problems


def token_problems(rows: Sequence[Row], read: Callable[[Row], Any]) -> list[str]:
    """Name tokens that cannot be read, or are not what a token is."""
    problems = row_problems("token", rows, read)
    for row in rows:
        id_, _, digest, *rest = row
        created_at, _, expires_at, revoked_at, revoked_by = rest[-5:]
        if len(digest) != 32:
            problems.append(f"token {id_!r} has a digest of {len(digest)} bytes, not 32")
        if (revoked_at is None) != (revoked_by is None):
            problems.append(f"token {id_!r} is half revoked")
        if expires_at is not None and expires_at < created_at:
            problems.append(f"token {id_!r} expires before it was made")
    return problems


def webhook_problems(rows: Sequence[Row], read: Callable[[Row], Any]) -> list[str]:
    """Name webhooks that cannot be read, or are not what a webhook is."""
    problems = row_problems("webhook", rows, read)
    for row in rows:
        secret, removed_at, removed_by = row[3], row[-2], row[-1]
        if (removed_at is None) != (removed_by is None):
            problems.append(f"webhook {row[0]!r} is half removed")
        if (removed_at is None) != (secret is not None):
            problems.append(f"webhook {row[0]!r} has {'a' if secret else 'no'} secret")
    return problems


def cursor_problems(rows: Sequence[Row], end: str, read: Callable[[str], Any]) -> list[str]:
    """Name cursors that cannot be read, or are ahead of the end of the tail."""
    problems = row_problems("cursor", rows, lambda row: read(row[1]))
    return problems + [
        f"cursor {name!r} is ahead of the last event: events would be passed over"
        for name, cursor in rows
        if cursor > end
    ]
