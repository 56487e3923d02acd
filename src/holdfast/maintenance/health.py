"""What can be wrong with a store that works: clocks that differ, work that is not done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from shlex import quote

from holdfast.lifecycle.due import due_since
from holdfast.lifecycle.states import CLAIMABLE
from holdfast.lifecycle.times import SECOND
from holdfast.operations.request import Operations
from holdfast.operations.requests import ListQueues, ListWorkers
from holdfast.operations.views import Depth
from holdfast.ports.models import WorkerStatus
from holdfast.ports.store import Store
from holdfast.queries.times_ahead import find_jobs_ahead
from holdfast.queries.why.phrases import describe_span
from holdfast.stores.findings import Finding, fine, problem, warning

SKEW_SECONDS = 5.0
OVERDUE = 60 * SECOND
"""How long a due job may stay before it seems that no reconciler runs."""
WORKERS = 1000
NAMED = 5
"""How many damaged jobs are named."""


async def examine_work(operations: Operations, own_clock: float) -> list[Finding]:
    """Examine clocks, workers and queues. `own_clock` is this machine's, in seconds."""
    roll = await operations.do(ListWorkers(limit=WORKERS))
    live = [one for one in roll.workers if one.is_live(roll.now)]
    return [
        _judge_clock(roll.now / SECOND - own_clock),
        _judge_workers(roll.workers, live),
        *_judge_queues((await operations.do(ListQueues())).queues, live),
    ]


async def examine_sweeps(store: Store) -> Finding:
    """Examine whether due jobs are handled."""
    due = await store.due(limit=1)
    if due.jobs and (late := due.now - due_since(due.jobs[0])) > OVERDUE:
        text = f"a job has been due for {late // SECOND:,} s: no reconciler runs"
        return warning("reconciler", text, "run `holdfast reconcile`, `holdfast up` or a worker")
    return fine("reconciler", "nothing is overdue")


async def examine_clock(store: Store) -> Finding:
    """Examine whether the clock of the store's machine was set back."""
    clock = await store.clock()
    if clock.step is None:
        return fine("store's clock", "its machine's clock was never found set back")
    ago = max(clock.now - clock.step.at, 0) // SECOND
    text = f"its machine's clock was set back by {clock.step.by // SECOND:,} s, {ago:,} s ago"
    if clock.ahead < SECOND:
        return fine("store's clock", f"{text}; the two agree again")
    text += f"; the store's clock was not set back and is {clock.ahead // SECOND:,} s ahead of it"
    advice = (
        "run NTP on the machine; the store's clock loses a tenth of the time until the two agree, "
        "and until then times that are given as instants come that much too early"
    )
    return warning("store's clock", text, advice)


async def examine_times(store: Store) -> Finding:
    """Find jobs that were written while the store's clock was ahead for a moment."""
    now = (await store.clock()).now
    found = [job async for job in find_jobs_ahead(store)]
    if not found:
        return fine("times", "no job is held back by a time from the future")
    most = max(job.updated_at for job in found) - now
    text = (
        f"{len(found):,} jobs were written by a clock that was up to {describe_span(most)} ahead, "
        "and wait that long for their due time or keep their lease that long"
    )
    return warning("times", text, "run `holdfast reconcile --repair-times`")


async def examine_quarantine(store: Store) -> Finding:
    aside = await store.quarantined(limit=NAMED)
    if not aside.total:
        return fine("quarantine", "no job is set aside")
    named = ", ".join(f"{one.id} ({one.reason})" for one in aside.jobs)
    more = f", and {aside.total - len(aside.jobs):,} more" if aside.total > NAMED else ""
    text = f"{aside.total:,} damaged jobs are set aside: {named}{more}"
    advice = "run `holdfast verify`, repair them, then `holdfast quarantine release --all`"
    return problem("quarantine", text, advice)


def _judge_clock(skew: float) -> Finding:
    text = f"the store's clock and this machine's differ by {abs(skew):.1f} s"
    if abs(skew) < SKEW_SECONDS:
        return fine("clock", text)
    advice = "run NTP on both; leases and deadlines are judged by the store's clock alone"
    return warning("clock", text, advice)


def _judge_workers(seen: Sequence[WorkerStatus], live: Sequence[WorkerStatus]) -> Finding:
    silent = [one for one in seen if one not in live and one.stopped_at is None]
    text = f"{len(live)} live, {len(silent)} silent"
    if live:
        return fine("workers", text)
    return warning("workers", text, "run `holdfast worker MODULE:APP`, or `holdfast up MODULE:APP`")


def _judge_queues(depths: Sequence[Depth], live: Sequence[WorkerStatus]) -> Iterator[Finding]:
    served = {queue for worker in live for queue in worker.queues}
    for depth in depths:
        waiting = sum(depth.jobs.get(state, 0) for state in CLAIMABLE)
        if depth.paused_at is not None:
            text = f"{depth.queue!r} was paused by {depth.paused_by}; {waiting:,} jobs wait in it"
            yield warning("queues", text, f"run `holdfast queues resume {quote(depth.queue)}`")
        elif waiting and depth.queue not in served:
            text = f"no live worker serves {depth.queue!r}; {waiting:,} jobs wait in it"
            yield warning("queues", text, f"run a worker with `--queues {quote(depth.queue)}`")
