"""Compensations: what one has to know of the job that it undoes, read from the ledger, and the
note in that job's history that it was undone.
"""

from __future__ import annotations

import logging

import msgspec
from msgspec.structs import replace

from holdfast.errors import NoSuchJob, PermanentError, Refused, RequestIdReused
from holdfast.flow.command import perform
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.history import STEP_ENDS, STEP_FAILURES
from holdfast.lifecycle.payload import Body
from holdfast.lifecycle.record import Actor, Created, Job, LoggedEvent
from holdfast.lifecycle.retry import is_compensation
from holdfast.lifecycle.states import Role
from holdfast.ports.models import Claimed, claimed_as
from holdfast.ports.store import Store
from holdfast.queries.history import read_all_events
from holdfast.queries.succession import read_recorded_line
from holdfast.tasks.compensation import Done, Story

log = logging.getLogger(__name__)


async def add_story(store: Store, claimed: Claimed, steps: frozenset[str] | None = None) -> Claimed:
    """Give a compensation its story: what its job was asked for, and which of `steps` it did.

    It is shown what its job was submitted with, too: labels, environment, correlation and trace.
    """
    undone, before = await _find_undone(store, claimed)
    [first] = await store.events(undone.id, limit=1)
    made = first.created
    if first.body is None or made is None:
        raise PermanentError(f"the arguments of job {undone.public_id} were erased")
    line = await read_recorded_line(store, undone.id, made)
    events = [event for each in line for event in each]
    story = Story(
        arguments=msgspec.Raw(first.body),
        steps=[done for done in _list_completed(events, steps) if done.undone_as not in before],
    )
    return claimed_as(
        replace(claimed.job, parent_id=undone.id),
        _as_submitted(claimed.created, made),
        Body(msgspec.json.encode(story)),
        first.correlation_id,
    )


async def note_compensated(store: Store, claimed: Claimed, worker: str) -> None:
    """Write into a job's history that it was undone: once, however often this is repeated.

    It comes before the compensation's own end, so that a death in between is healed by the next
    attempt, which finds its steps done and only repeats this note.
    """
    job = claimed.job
    assert job.parent_id is not None
    command = c.Compensated(
        actor=Actor(Role.WORKER, worker), link=job.id, request_id=f"compensated by {job.id}"
    )
    try:
        await perform(store, job.parent_id, command)
    except RequestIdReused:
        return  # an earlier attempt, under another worker's name
    except (NoSuchJob, Refused) as error:
        log.warning(
            "job %s compensated another, whose history cannot record it: %s", job.public_id, error
        )


async def _find_undone(store: Store, claimed: Claimed) -> tuple[Job, set[str]]:
    """Find the job that is undone, and what a compensation that was redriven had done of it.

    A redriven compensation has the dead one as its parent. One that resumes recalls what that one
    did; one that was redriven from the start must still not undo a step twice.
    """
    job, resumes = claimed.job, claimed.created.resumes is not None
    before: set[str] = set()
    while True:
        found = None if job.parent_id is None else (await store.get([job.parent_id]))[0]
        if found is None:
            raise PermanentError(f"the job that {job.public_id} compensates does not exist")
        if not is_compensation(found):
            return found, before
        events = [] if resumes else await read_all_events(store, found.id)
        before |= {event.facts.step or "" for event in events if _completes_step(event)}
        job = found


def _list_completed(events: list[LoggedEvent], steps: frozenset[str] | None) -> list[Done]:
    """List the completed steps of these names, or all, the last first."""
    done = [
        event
        for event in events
        if _completes_step(event) and (steps is None or event.facts.step in steps)
    ]
    return [_read_done(event) for event in reversed(done)]


def _completes_step(event: LoggedEvent) -> bool:
    # A wait whose signal was there, and a child, are remembered like a step, and are none.
    plain = event.facts.consumed is None and event.facts.link is None
    return plain and event.type in STEP_ENDS - STEP_FAILURES


def _read_done(event: LoggedEvent) -> Done:
    facts = event.facts
    if event.body is None and event.digest is not None:
        raise PermanentError(f"the result of step {facts.step!r} of job {event.id} was erased")
    return Done(facts.step or "", facts.step_use or 1, msgspec.Raw(event.body or b"null"))


def _as_submitted(mine: Created, made: Created) -> Created:
    return replace(
        mine,
        labels=made.labels,
        env=made.env,
        context_ptr=made.context_ptr,
        adapter_id=made.adapter_id,
        files_id=made.files_id,
        trace_id=made.trace_id,
    )
