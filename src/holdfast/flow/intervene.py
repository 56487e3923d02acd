"""Intervene: what a person or a program does to a job from outside: cancel, signal, hold."""

from __future__ import annotations

from contextlib import suppress

from holdfast.errors import Refused, StoreError
from holdfast.flow.children import tend
from holdfast.flow.perform import perform
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.job import Actor, Job, JobId
from holdfast.lifecycle.states import OWNED
from holdfast.lifecycle.states import Cancel as Mode
from holdfast.ports import Store

CANCEL_TRIES = 5
"""How often a cancel looks again when the job gets or loses an owner at that very moment."""


async def cancel(
    store: Store,
    id: JobId,
    actor: Actor,
    *,
    hard: bool = False,
    reason: str | None = None,
    request_id: str | None = None,
) -> Job:
    """Cancel a job: at once where nobody holds it, else by asking its owner.

    The record that comes back says which: `cancelled`, or `cancel_requested`. A job that had ended
    before is returned as it is.
    """
    for _ in range(CANCEL_TRIES):
        job = (await store.get([id]))[0]
        if job is not None and job.terminal:
            return job
        owned = job is not None and job.state in OWNED
        command: c.Command = (
            c.RequestCancel(
                actor=actor,
                mode=Mode.HARD if hard else Mode.SOFT,
                reason=reason,
                request_id=request_id,
            )
            if owned
            else c.Cancel(actor=actor, reason=reason, request_id=request_id)
        )
        try:
            job = await perform(store, id, command)
            await _reach_children(store, id, actor)
            return job
        except Refused as error:
            # It was claimed, released or ended between the look and the write: look again.
            if error.reason_code not in ("illegal_transition", "terminal"):
                raise
    raise Refused(f"job {id} changed hands {CANCEL_TRIES} times meanwhile", job_id=str(id))


async def _reach_children(store: Store, id: JobId, actor: Actor) -> None:
    """Let a cancel reach the tree now; a reconciler would within its tick."""
    # The cancel itself is written: that the rest has to wait is no failure of it.
    with suppress(StoreError):
        if await store.children([id], live_only=True, limit=1):
            await tend(store, actor)


async def signal(
    store: Store,
    id: JobId,
    actor: Actor,
    name: str,
    body: bytes = b"null",
    *,
    request_id: str | None = None,
) -> Job:
    """Send a signal, and wake the job if it was waiting for it: in one commit.

    In two, a death between them would leave a job waiting for what is there.
    """
    command = c.SignalJob(actor=actor, name=name, body=body, request_id=request_id)
    return await perform(store, id, command, follow=c.Resume(actor=actor))
