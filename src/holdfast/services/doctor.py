"""What can be wrong with a store that works: clocks that differ, work that nobody does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from shlex import quote

from holdfast.flow.phrases import span
from holdfast.flow.repair_times import jobs_ahead
from holdfast.lifecycle.states import State
from holdfast.lifecycle.times import SECOND
from holdfast.operations import Depth, Operations
from holdfast.ports import Store, WorkerStatus
from holdfast.stores.due import due_since
from holdfast.stores.findings import Finding, fine, problem, warning

SKEW_SECONDS = 5.0
OVERDUE = 60 * SECOND
"""How long what is due may lie around before nobody seems to sweep."""
WORKERS = 1000
NAMED = 5
"""Damaged jobs that are named."""
FOR_A_WORKER = (State.QUEUED, State.RETRYING, State.STALLED)


async def examine_work(operations: Operations, own_clock: float) -> list[Finding]:
    """Look at clocks, workers and queues. `own_clock` is this machine's, in seconds."""
    roll = await operations.workers(limit=WORKERS)
    live = [one for one in roll.workers if one.is_live(roll.now)]
    return [
        _clock(roll.now / SECOND - own_clock),
        _workers(roll.workers, live),
        *_queues(await operations.queues(), live),
    ]


async def examine_sweeps(store: Store) -> Finding:
    """Look whether somebody does what is due."""
    due = await store.due(limit=1)
    if due.jobs and (late := due.now - due_since(due.jobs[0])) > OVERDUE:
        text = f"what is due has been so for {late // SECOND:,} s: nobody sweeps"
        return warning("reconciler", text, "run `holdfast reconcile`, `holdfast up` or a worker")
    return fine("reconciler", "nothing is overdue")


async def examine_clock(store: Store) -> Finding:
    """Look whether the clock of the store's machine was set back."""
    clock = await store.clock()
    if clock.step is None:
        return fine("store's clock", "its machine's clock was never found set back")
    ago = max(clock.now - clock.step.at, 0) // SECOND
    text = f"its machine's clock was set back by {clock.step.by // SECOND:,} s, {ago:,} s ago"
    if clock.ahead < SECOND:
        return fine("store's clock", f"{text}; the two agree again")
    text += f"; the store's clock went on and is {clock.ahead // SECOND:,} s ahead of it"
    advice = (
        "run NTP on the machine; the store's clock loses a tenth of the time until the two agree, "
        "and until then times that are given as instants come early by so much"
    )
    return warning("store's clock", text, advice)


async def examine_times(store: Store) -> Finding:
    """Look for jobs that were written while the store's clock was ahead for a moment."""
    now = (await store.clock()).now
    found = [job async for job in jobs_ahead(store)]
    if not found:
        return fine("times", "no job is held back by a time from the future")
    most = max(job.updated_at for job in found) - now
    text = (
        f"{len(found):,} jobs were written by a clock that was up to {span(most)} ahead, and wait "
        "for their due time or keep their lease for so long"
    )
    return warning("times", text, "run `holdfast reconcile --repair-times`")


async def examine_quarantine(store: Store) -> Finding:
    """Look for damaged jobs that are set aside."""
    aside = await store.quarantined(limit=NAMED)
    if not aside.total:
        return fine("quarantine", "no job is set aside")
    named = ", ".join(f"{one.id} ({one.reason})" for one in aside.jobs)
    more = f", and {aside.total - len(aside.jobs):,} more" if aside.total > NAMED else ""
    text = f"{aside.total:,} damaged jobs are set aside: {named}{more}"
    mend = "run `holdfast verify`, repair them, then `holdfast quarantine release --all`"
    return problem("quarantine", text, mend)


def _clock(skew: float) -> Finding:
    text = f"the store's clock and this machine's differ by {abs(skew):.1f} s"
    if abs(skew) < SKEW_SECONDS:
        return fine("clock", text)
    mend = "run NTP on both; the store's clock judges leases and deadlines, whatever this one says"
    return warning("clock", text, mend)


def _workers(seen: Sequence[WorkerStatus], live: Sequence[WorkerStatus]) -> Finding:
    silent = [one for one in seen if one not in live and one.stopped_at is None]
    text = f"{len(live)} live, {len(silent)} silent"
    if live:
        return fine("workers", text)
    return warning("workers", text, "run `holdfast worker MODULE:APP`, or `holdfast up MODULE:APP`")


def _queues(depths: Sequence[Depth], live: Sequence[WorkerStatus]) -> Iterator[Finding]:
    served = {queue for worker in live for queue in worker.queues}
    for depth in depths:
        waiting = sum(depth.jobs.get(state, 0) for state in FOR_A_WORKER)
        if depth.paused_at is not None:
            text = f"{depth.queue!r} was paused by {depth.paused_by}; {waiting:,} jobs wait in it"
            yield warning("queues", text, f"run `holdfast queues resume {quote(depth.queue)}`")
        elif waiting and depth.queue not in served:
            text = f"no live worker serves {depth.queue!r}; {waiting:,} jobs wait in it"
            yield warning("queues", text, f"run a worker with `--queues {quote(depth.queue)}`")
