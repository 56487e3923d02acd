"""`holdfast workers`: who serves which queues, who fell silent, who ended in order.

Exit codes: 0 answered, 2 bad input, 3 the store failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from holdfast.cli.running import DEFAULT_URL, AsJson, Url, out, print_json, run, with_operations
from holdfast.cli.showing import plain, say, say_table, short
from holdfast.flow.phrases import span
from holdfast.json_format import json_of
from holdfast.lifecycle.times import SECOND
from holdfast.operations import Operations, Roll
from holdfast.ports import WorkerStatus
from holdfast.views import instant as timestamp

RECENT = 3600 * SECOND
"""How long ago a worker may have been seen to be listed without --all."""
TITLES = ("WORKER", "STATUS", "SEEN", "SLOTS", "HOST", "PID", "QUEUES", "CAPABILITIES", "TASKS")

All = Annotated[bool, typer.Option("--all", help="Also those not seen for an hour; up to a week.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=10_000, help="How many at most.")]


def register(app: typer.Typer) -> None:
    """Add this command."""
    app.command()(workers)


def workers(
    url: Url = DEFAULT_URL, everyone: All = False, limit: Limit = 1000, as_json: AsJson = False
) -> None:
    """List workers, the most recently seen first: what they serve, and whether they live."""

    async def work(operations: Operations) -> Roll:
        since = None if everyone else await operations.now() - RECENT
        return await operations.workers(seen_since=since, limit=limit)

    roll = run(with_operations(url, None, work))
    now, found = roll.now, roll.workers
    if as_json:
        print_json({"now": json_of(timestamp(now)), "workers": [_json(one, now) for one in found]})
    elif found:
        say_table(out, TITLES, [_row(one, now) for one in found])
    else:
        say(out, "no worker was seen" if everyone else "no worker was seen in the last hour")


def _json(worker: WorkerStatus, now: int) -> dict[str, Any]:
    told: dict[str, Any] = json_of(worker)
    told["capabilities"] = sorted(worker.capabilities)
    return told | {"status": _status(worker, now)}


def _row(worker: WorkerStatus, now: int) -> list[str]:
    return [
        plain(worker.name),
        _status(worker, now),
        f"{span(max(0, now - worker.seen_at))} ago",
        str(worker.concurrency),
        plain(worker.host),
        str(worker.pid),
        _list(worker.queues),
        _list(sorted(worker.capabilities)),
        str(len(worker.tasks)),
    ]


def _status(worker: WorkerStatus, now: int) -> str:
    if worker.stopped_at is not None:
        return "ended"
    return "live" if worker.is_live(now) else "silent"


def _list(names: Sequence[str]) -> str:
    return short(",".join(names)) or "–"
