"""Workers as rows: what may be kept of one, how it is written, and how it is read back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.errors import BadData
from holdfast.lifecycle.payload import check_number, check_text
from holdfast.ports import Announcement, WorkerStatus

NAMES_LIMIT = 256 * 1024
"""Characters of all queues, capabilities and tasks of a worker: each announcement sends them."""
FORGET_BATCH = 100
"""How many old workers one announcement forgets at most."""


def worker_row(worker: Announcement) -> tuple[str, int, int, str, str, str, str]:
    """Write name, pid, concurrency, host and lists; refuse what cannot be kept."""
    check_text(worker.name, "the worker's name", limit=200)
    check_text(worker.host, "host", limit=255)
    check_number(worker.pid, "pid", low=0)
    check_number(worker.concurrency, "concurrency")
    if type(worker.capabilities) is not frozenset:
        raise BadData("capabilities must be a frozenset")
    for what in ("queues", "tasks"):
        if type(getattr(worker, what)) is not tuple:
            raise BadData(f"{what} must be a tuple")
    size = sum(
        len(check_text(name, f"a name in {what}", limit=200))
        for what in ("queues", "capabilities", "tasks")
        for name in getattr(worker, what)
    )
    if size > NAMES_LIMIT:
        raise BadData(
            f"queues, capabilities and tasks hold {size:,} characters; the limit is {NAMES_LIMIT:,}"
        )
    lists = (worker.queues, sorted(worker.capabilities), worker.tasks)
    queues, capabilities, tasks = (msgspec.json.encode(names).decode() for names in lists)
    return worker.name, worker.pid, worker.concurrency, worker.host, queues, capabilities, tasks


def read_worker(row: Sequence[Any]) -> WorkerStatus:
    """Read a row of the statement `workers`."""
    name, started_at, seen_at, stopped_at, pid, concurrency, host, *lists = row
    queues, capabilities, tasks = (msgspec.json.decode(text) for text in lists)
    return WorkerStatus(
        name=name,
        queues=tuple(queues),
        capabilities=frozenset(capabilities),
        tasks=tuple(tasks),
        host=host,
        pid=pid,
        concurrency=concurrency,
        started_at=started_at,
        seen_at=seen_at,
        stopped_at=stopped_at,
    )
