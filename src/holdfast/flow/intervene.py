"""Intervene: what a person or a program does to a job from outside: cancel, signal, hold."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from holdfast.errors import BadData, NoSuchJob, Refused, StoreError, about
from holdfast.flow.children import tend
from holdfast.flow.harden import harden
from holdfast.flow.perform import check_revision, perform
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.job import (
    PENDING_SIGNALS,
    RECHECKS,
    RESERVED,
    RESOLVE,
    SIGNAL_NAME,
    Actor,
    Job,
    JobId,
    Refusal,
)
from holdfast.lifecycle.payload import check_text, encode_body
from holdfast.lifecycle.signals import is_awaited
from holdfast.lifecycle.states import OWNED
from holdfast.lifecycle.states import Cancel as Mode
from holdfast.lifecycle.times import Time
from holdfast.ports import Jobs, Store

OPERATOR_HOLD = "operator"
"""The hold that a person puts on a job without naming one."""


async def cancel(
    store: Store,
    id: JobId,
    actor: Actor,
    *,
    hard: bool = False,
    reason: str | None = None,
    request_id: str | None = None,
    expected_rev: int | None = None,
) -> Job:
    """Cancel a job: at once where nobody holds it, else by asking its owner.

    The record that comes back says which: `cancelled`, or `cancel_requested`. A job that had ended
    before is returned as it is. A hard cancel goes on to whoever lives below the job, whether it
    has ended or not; one that breaks off on the way is to be repeated.
    """
    reason = _reason(reason)

    def choose(job: Job) -> c.Command:
        kind = c.RequestCancel if job.state in OWNED else c.Cancel
        mode = Mode.HARD if hard else Mode.SOFT
        return kind(actor=actor, mode=mode, reason=reason, request_id=request_id)

    while True:
        job = (await store.get([id]))[0]
        if job is None:
            raise NoSuchJob(f"no job {id}", job_id=str(id))
        if await _done_before(store, job, actor, request_id):
            # Its way down the tree may have broken off; what was a soft request stays one.
            if hard and job.cancel_requested is Mode.HARD:
                await harden(store, job, actor, reason)
            await store.await_durable()
            return job
        if job.terminal:
            check_revision(job, expected_rev)
            if hard:
                await harden(store, job, actor, reason)
            await store.await_durable()
            return job
        try:
            job = await perform(store, id, choose(job), expected_rev=expected_rev, choose=choose)
        except Refused as error:
            # It ended between the look and the write: look again.
            if error.code != "terminal":
                raise
            continue
        await _reach_children(store, id, actor)
        if hard:
            await harden(store, job, actor, reason)
        return job


async def _done_before(store: Jobs, job: Job, actor: Actor, request_id: str | None) -> bool:
    """Whether this very request was carried out, and only its answer was lost.

    The job may have moved on since, so that the same words would be another command now.
    """
    if request_id is None:
        return False
    event = await store.request_event(job.id, request_id)
    return event is not None and event.actor == actor.label


async def _reach_children(store: Store, id: JobId, actor: Actor) -> None:
    """Let a cancel reach the tree now; a reconciler would within its tick."""
    # The cancel itself is written: that the rest has to wait is no failure of it.
    with suppress(StoreError):
        if await store.children([id], live_only=True, limit=1):
            await tend(store, actor)


async def signal(
    store: Jobs,
    id: JobId,
    actor: Actor,
    name: str,
    body: bytes = b"null",
    *,
    limit: int = PENDING_SIGNALS,
    request_id: str | None = None,
    expected_rev: int | None = None,
) -> Job:
    """Send a signal, and wake the job if it was waiting for it: in one commit.

    In two, a death between them would leave a job waiting for what is there. Of the signals that
    are kept the record that comes back may have this one only: see `Job.unread_signals`.
    """
    with about("name"):
        check_text(name, "a signal's name", limit=SIGNAL_NAME)
    command = c.SignalJob(actor=actor, name=name, body=body, request_id=request_id, limit=limit)
    if name in RECHECKS:
        return await perform(
            store,
            id,
            command,
            expected_rev=expected_rev,
            follow=c.Resume(actor=actor),
            # Never kept for later: the next time that it is parked would not last.
            choose=lambda job: command if job.wait_for == name else _not_parked(job),
        )
    if name.startswith(RESERVED):
        with about("name"):
            raise BadData(f"signal names that begin with {RESERVED!r} are Holdfast's own")
    return await perform(
        store,
        id,
        command,
        expected_rev=expected_rev,
        follow=c.Resume(actor=actor),
        needs_signals=lambda job: is_awaited(job, name),
    )


async def hold(
    store: Jobs,
    id: JobId,
    actor: Actor,
    name: str = OPERATOR_HOLD,
    *,
    reason: str | None = None,
    request_id: str | None = None,
    expected_rev: int | None = None,
) -> Job:
    """Keep a job from being claimed until the hold of this name is lifted."""
    command = c.Hold(actor=actor, hold=_hold(name), reason=_reason(reason), request_id=request_id)
    return await perform(store, id, command, expected_rev=expected_rev)


async def unhold(
    store: Jobs,
    id: JobId,
    actor: Actor,
    name: str = OPERATOR_HOLD,
    *,
    reason: str | None = None,
    request_id: str | None = None,
    expected_rev: int | None = None,
) -> Job:
    """Lift the hold of this name; other holds of the job stay."""
    command = c.Unhold(actor=actor, hold=_hold(name), reason=_reason(reason), request_id=request_id)
    return await perform(store, id, command, expected_rev=expected_rev)


async def reschedule(
    store: Jobs,
    id: JobId,
    actor: Actor,
    run_at: Time,
    *,
    reason: str | None = None,
    request_id: str | None = None,
    expected_rev: int | None = None,
) -> Job:
    """Make a job that has no owner due at another time."""
    command = c.Reschedule(
        actor=actor, run_at=run_at, reason=_reason(reason), request_id=request_id
    )
    return await perform(store, id, command, expected_rev=expected_rev)


def _hold(name: str) -> str:
    with about("hold"):
        return check_text(name, "a hold's name", limit=100)


def _reason(reason: str | None) -> str | None:
    if reason is None:
        return None
    with about("reason"):
        return check_text(reason, "reason", empty=True)


async def resolve(
    store: Jobs,
    id: JobId,
    actor: Actor,
    step: str,
    *,
    happened: bool,
    result: Any = None,
    force: bool = False,
    limit: int = PENDING_SIGNALS,
    request_id: str | None = None,
    expected_rev: int | None = None,
) -> Job:
    """Say whether a step had its effect that a job waits to be told of.

    Refused where it does not wait for that: what is kept for later would answer another question.
    `force` sends it all the same.
    """
    with about("step"):
        name = RESOLVE + check_text(step, "a step's name", limit=SIGNAL_NAME - len(RESOLVE))
    said = {"happened": True, "result": result} if happened else {"happened": False}
    with about("result"):
        body = encode_body(said, f"the result of step {step!r}")
    if force:
        return await signal(
            store,
            id,
            actor,
            name,
            body,
            limit=limit,
            request_id=request_id,
            expected_rev=expected_rev,
        )
    command = c.SignalJob(actor=actor, name=name, body=body, request_id=request_id)
    return await perform(
        store,
        id,
        command,
        expected_rev=expected_rev,
        follow=c.Resume(actor=actor),
        # Somebody else may have answered meanwhile, and then it is not for us.
        choose=lambda job: command if job.wait_for == name else _not_asked(job, step),
    )


def _not_parked(job: Job) -> Refusal:
    return Refusal(
        code="not_waiting",
        message=f"job {job.public_id} ({job.state}) is not parked by its worker; nothing was sent",
    )


def _not_asked(job: Job, step: str) -> Refusal:
    if (job.wait_for or "").startswith(RESOLVE):
        waits = f"asks about step {(job.wait_for or '').removeprefix(RESOLVE)!r}"
    else:
        waits = f"waits for {job.wait_for!r}" if job.wait_for else "waits for nothing"
    return Refusal(
        code="not_waiting",
        message=f"job {job.public_id} ({job.state}) {waits}, not for what became of step {step!r}",
    )
