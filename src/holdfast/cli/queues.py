"""`holdfast queues`: how deep each queue is, and whether it is paused.

Exit codes: 0 done, 2 bad input, 3 the store failed.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from holdfast.cli.asking import OfTenant, Reason, check_texts
from holdfast.cli.running import DEFAULT_URL, AsJson, Url, out, print_json, run, with_operations
from holdfast.cli.showing import instant, plain, say, say_table, short
from holdfast.json_format import json_of
from holdfast.lifecycle.payload import check_text
from holdfast.lifecycle.states import State
from holdfast.operations import Depth, Operations
from holdfast.ports import QueueStatus
from holdfast.views import instant as timestamp

queues_app = typer.Typer(help="Queues: depth by state, pause, resume.", no_args_is_help=True)
QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]
STATES = [state for state in State if state is not State.UNKNOWN]


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.add_typer(queues_app, name="queues")


@queues_app.command("list")
def list_queues(tenant: OfTenant = None, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List queues, with how many jobs are in which state."""

    async def work(operations: Operations) -> list[Depth]:
        return await operations.queues()

    found = run(with_operations(url, tenant, work))
    if as_json:
        print_json({"queues": [_as_data(queue) for queue in found]})
    elif found:
        _say_queues(found)
    else:
        say(out, "no queues yet")


@queues_app.command("pause")
def pause_queue(
    queue: QueueName, reason: Reason = None, url: Url = DEFAULT_URL, as_json: AsJson = False
) -> None:
    """Let no job of a queue be claimed; what runs goes on."""

    async def work(operations: Operations) -> QueueStatus:
        _check(queue, reason)
        return await operations.pause(queue, reason=reason)

    _say_status(run(with_operations(url, None, work)), as_json)


@queues_app.command("resume")
def resume_queue(
    queue: QueueName, reason: Reason = None, url: Url = DEFAULT_URL, as_json: AsJson = False
) -> None:
    """Let a queue's jobs be claimed again."""

    async def work(operations: Operations) -> QueueStatus:
        _check(queue, reason)
        return await operations.resume(queue, reason=reason)

    _say_status(run(with_operations(url, None, work)), as_json)


def _check(queue: str, reason: str | None) -> None:
    check_text(queue, "QUEUE", limit=200)
    check_texts(reason=reason)


def _as_data(queue: Depth) -> dict[str, Any]:
    states = {state.value: jobs for state, jobs in queue.jobs.items()}
    return {"queue": queue.queue, "jobs": states} | _pause(queue)


def _pause(status: Depth | QueueStatus) -> dict[str, Any]:
    if status.paused_at is None:
        return {"paused": False}
    return {
        "paused": True,
        "paused_at": json_of(timestamp(status.paused_at)),
        "paused_by": status.paused_by,
        "reason": status.reason,
    }


def _say_queues(found: list[Depth]) -> None:
    used = [state for state in STATES if any(queue.jobs.get(state) for queue in found)]
    rows = [
        (
            short(queue.queue, 40),
            *(f"{queue.jobs.get(state, 0):,}" for state in used),
            _paused(queue),
        )
        for queue in found
    ]
    say_table(out, ("QUEUE", *(state.value.upper() for state in used), "PAUSED"), rows)


def _paused(queue: Depth) -> str:
    if queue.paused_at is None:
        return "–"
    why = f": {short(queue.reason)}" if queue.reason else ""
    return f"{instant(queue.paused_at)} by {plain(queue.paused_by)}{why}"


def _say_status(status: QueueStatus, as_json: bool) -> None:
    if as_json:
        print_json({"queue": status.name} | _pause(status))
    else:
        paused = status.paused_at is not None
        say(out, f"queue {plain(status.name)} {'is paused' if paused else 'is not paused'}")
