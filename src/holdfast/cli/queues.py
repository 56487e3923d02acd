"""`holdfast queues` and `holdfast workers`: how deep each queue is, and who serves it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from typer import Argument, Option

from holdfast.cli.options import JobCommand, Reason, ServerCommand, check_texts
from holdfast.cli.output import align_table, plain, short, time_text
from holdfast.durations import instant
from holdfast.lifecycle.payload import check_text
from holdfast.lifecycle.states import State
from holdfast.lifecycle.times import SECOND
from holdfast.operations import requests as q
from holdfast.operations.json_format import json_of
from holdfast.operations.request import Operations
from holdfast.operations.views import Depth, Roll
from holdfast.ports.models import QueueStatus, WorkerStatus
from holdfast.queries.why.phrases import describe_span

QueueName = Annotated[str, Argument(metavar="QUEUE", help="The queue's name.")]
RECENT = 3600 * SECOND
"""How long ago a worker may have been seen to be listed without --all."""
WORKER_TITLES = (
    *("WORKER", "STATUS", "SEEN", "SLOTS", "HOST", "PID"),
    *("QUEUES", "CAPABILITIES", "TASKS"),
)


def list_queues(command: JobCommand) -> None:
    """List queues with their number of jobs by state."""
    found = command.do(q.ListQueues()).queues
    answer = {
        "queues": [{"queue": one.queue, "jobs": one.jobs} | _pause_as_data(one) for one in found]
    }
    command.show(answer, *(_queue_lines(found) if found else ["no queues yet"]))


def _queue_lines(found: list[Depth]) -> list[str]:
    states = [state for state in State if any(queue.jobs.get(state) for queue in found)]
    rows = [
        (
            short(queue.queue, 40),
            *(f"{queue.jobs.get(state, 0):,}" for state in states),
            _pause_text(queue),
        )
        for queue in found
    ]
    return align_table(("QUEUE", *(state.value.upper() for state in states), "PAUSED"), rows)


def _pause_text(queue: Depth) -> str:
    if queue.paused_at is None:
        return "–"
    why = f": {short(queue.reason)}" if queue.reason else ""
    return f"{time_text(queue.paused_at)} by {plain(queue.paused_by)}{why}"


def _pause_as_data(status: Depth | QueueStatus) -> dict[str, Any]:
    if status.paused_at is None:
        return {"paused": False}
    return {
        "paused": True,
        "paused_at": instant(status.paused_at),
        "paused_by": status.paused_by,
        "reason": status.reason,
    }


def pause_queue(command: ServerCommand, queue: QueueName, reason: Reason = None) -> None:
    """Stop claims from a queue; running jobs continue."""
    _check(queue, reason)
    _show(command, command.do(q.PauseQueue(queue=queue, reason=reason)))


def resume_queue(command: ServerCommand, queue: QueueName, reason: Reason = None) -> None:
    """Allow claims from a queue again."""
    _check(queue, reason)
    _show(command, command.do(q.ResumeQueue(queue=queue, reason=reason)))


def _check(queue: str, reason: str | None) -> None:
    check_text(queue, "QUEUE", limit=200)
    check_texts(reason=reason)


def _show(command: ServerCommand, status: QueueStatus) -> None:
    state = "is not paused" if status.paused_at is None else "is paused"
    command.show(
        {"queue": status.name} | _pause_as_data(status), f"queue {plain(status.name)} {state}"
    )


def list_workers(
    command: ServerCommand,
    everyone: Annotated[
        bool, Option("--all", help="Also those not seen for an hour; up to a week.")
    ] = False,
    limit: Annotated[int, Option(min=1, max=10_000, help="Maximum workers to list.")] = 1000,
) -> None:
    """List workers, the most recently seen first: what they serve, and whether they are live."""

    async def work(operations: Operations) -> Roll:
        since = None
        if not everyone:
            since = instant((await operations.do(q.GetClock())).now - RECENT)
        return await operations.do(q.ListWorkers(seen_since=since, limit=limit))

    roll = command.ask(work)
    now, found = roll.now, roll.workers
    none = "no worker was seen" if everyone else "no worker was seen in the last hour"
    lines = (
        align_table(WORKER_TITLES, [_worker_row(one, now) for one in found]) if found else [none]
    )
    answer = {"now": instant(now), "workers": [_worker_data(one, now) for one in found]}
    command.show(answer, *lines)


def _worker_data(worker: WorkerStatus, now: int) -> dict[str, Any]:
    data: dict[str, Any] = json_of(worker)
    return data | {"capabilities": sorted(worker.capabilities), "status": _status(worker, now)}


def _worker_row(worker: WorkerStatus, now: int) -> list[str]:
    return [
        plain(worker.name),
        _status(worker, now),
        f"{describe_span(max(0, now - worker.seen_at))} ago",
        str(worker.concurrency),
        plain(worker.host),
        str(worker.pid),
        _names(worker.queues),
        _names(sorted(worker.capabilities)),
        str(len(worker.tasks)),
    ]


def _status(worker: WorkerStatus, now: int) -> str:
    if worker.stopped_at is not None:
        return "ended"
    return "live" if worker.is_live(now) else "silent"


def _names(names: Sequence[str]) -> str:
    return short(",".join(names)) or "–"
