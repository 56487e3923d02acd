"""`holdfast queues`: how deep each queue is, and whether it is paused.

Exit codes: 0 done, 2 bad input, 3 the store failed.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from holdfast.cli.asking import OfTenant, Reason, check_texts, operator
from holdfast.cli.running import DEFAULT_URL, AsJson, Url, out, print_json, run, with_store
from holdfast.cli.showing import instant, plain, say, say_table, short
from holdfast.lifecycle.payload import check_text
from holdfast.lifecycle.states import State
from holdfast.ports import QueueStatus, Store

queues_app = typer.Typer(help="Queues: depth by state, pause, resume.", no_args_is_help=True)
QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")]
STATES = [state for state in State if state is not State.UNKNOWN]


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.add_typer(queues_app, name="queues")


@queues_app.command("list")
def list_queues(tenant: OfTenant = None, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """List queues, with how many jobs are in which state."""

    async def work(store: Store) -> tuple[dict[str, dict[State, int]], dict[str, QueueStatus]]:
        check_texts(tenant=tenant)
        depth: dict[str, dict[State, int]] = {}
        for one in await store.counts(tenant):
            states = depth.setdefault(one.queue, {})
            states[one.state] = states.get(one.state, 0) + one.jobs
        return depth, {one.name: one for one in await store.queues()}

    depth, known = run(with_store(url, work))
    names = sorted(depth.keys() | known.keys())
    if as_json:
        print_json({"queues": [_as_data(name, depth, known) for name in names]})
    elif names:
        _say_queues(names, depth, known)
    else:
        say(out, "no queues yet")


@queues_app.command("pause")
def pause_queue(
    queue: QueueName, reason: Reason = None, url: Url = DEFAULT_URL, as_json: AsJson = False
) -> None:
    """Let no job of a queue be claimed; what runs goes on."""

    async def work(store: Store) -> QueueStatus:
        _check(queue, reason)
        return await store.pause(queue, actor=operator().label, reason=reason)

    _say_status(run(with_store(url, work)), as_json)


@queues_app.command("resume")
def resume_queue(
    queue: QueueName, reason: Reason = None, url: Url = DEFAULT_URL, as_json: AsJson = False
) -> None:
    """Let a queue's jobs be claimed again."""

    async def work(store: Store) -> QueueStatus:
        _check(queue, reason)
        return await store.resume(queue, actor=operator().label, reason=reason)

    _say_status(run(with_store(url, work)), as_json)


def _check(queue: str, reason: str | None) -> None:
    check_text(queue, "QUEUE", limit=200)
    check_texts(reason=reason)


def _as_data(
    name: str, depth: dict[str, dict[State, int]], known: dict[str, QueueStatus]
) -> dict[str, Any]:
    states = {state.value: jobs for state, jobs in depth.get(name, {}).items() if jobs}
    return {"queue": name, "jobs": states} | _pause(known.get(name))


def _pause(status: QueueStatus | None) -> dict[str, Any]:
    if status is None or status.paused_at is None:
        return {"paused": False}
    return {
        "paused": True,
        "paused_at": status.paused_at,
        "paused_by": status.paused_by,
        "reason": status.reason,
    }


def _say_queues(
    names: list[str], depth: dict[str, dict[State, int]], known: dict[str, QueueStatus]
) -> None:
    used = [state for state in STATES if any(depth.get(name, {}).get(state) for name in names)]
    rows = [
        (
            short(name, 40),
            *(f"{depth.get(name, {}).get(state, 0):,}" for state in used),
            _paused(known.get(name)),
        )
        for name in names
    ]
    say_table(out, ("QUEUE", *(state.value.upper() for state in used), "PAUSED"), rows)


def _paused(status: QueueStatus | None) -> str:
    if status is None or status.paused_at is None:
        return "–"
    why = f": {short(status.reason)}" if status.reason else ""
    return f"{instant(status.paused_at)} by {plain(status.paused_by)}{why}"


def _say_status(status: QueueStatus, as_json: bool) -> None:
    if as_json:
        print_json({"queue": status.name} | _pause(status))
    else:
        paused = status.paused_at is not None
        say(out, f"queue {plain(status.name)} {'is paused' if paused else 'is not paused'}")
