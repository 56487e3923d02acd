"""Signal a job, and record what became of an interrupted step."""

from __future__ import annotations

from typing import Any

from holdfast.errors import BadData, about
from holdfast.flow.command import perform
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.payload import check_text, encode_body
from holdfast.lifecycle.record import (
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
from holdfast.lifecycle.signals import is_awaited
from holdfast.ports.store import Jobs


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

    In two, a death between them would leave a job waiting for what is there. The record that is
    returned may have this one only of the signals that are kept: see `Job.unread_signals`.
    """
    with about("name"):
        check_text(name, "a signal's name", limit=SIGNAL_NAME)
    is_recheck = name in RECHECKS
    if name.startswith(RESERVED) and not is_recheck:
        with about("name"):
            raise BadData(f"signal names that start with {RESERVED!r} are Holdfast's own")
    command = c.SignalJob(actor=actor, name=name, body=body, request_id=request_id, limit=limit)
    return await perform(
        store,
        id,
        command,
        expected_rev=expected_rev,
        follow=c.Resume(actor=actor),
        # A recheck is never kept for later: it would end the job's next wait at once.
        choose=(lambda job: command if job.wait_for == name else _refuse_recheck(job))
        if is_recheck
        else None,
        needs_signals=lambda job: is_recheck or is_awaited(job, name),
    )


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
    """Record whether an interrupted step took effect, so that the job can continue.

    Refused where the job does not wait for that: an answer kept for later would answer another
    question. `force` sends it all the same.
    """
    with about("step"):
        name = RESOLVE + check_text(step, "a step's name", limit=SIGNAL_NAME - len(RESOLVE))
    verdict = {"happened": True, "result": result} if happened else {"happened": False}
    with about("result"):
        body = encode_body(verdict, f"the result of step {step!r}")
    if force:
        given: dict[str, Any] = {"request_id": request_id, "expected_rev": expected_rev}
        return await signal(store, id, actor, name, body, limit=limit, **given)
    command = c.SignalJob(actor=actor, name=name, body=body, request_id=request_id)
    return await perform(
        store,
        id,
        command,
        expected_rev=expected_rev,
        follow=c.Resume(actor=actor),
        # Another caller may have answered meanwhile, and then this answer is not wanted.
        choose=lambda job: command if job.wait_for == name else _refuse_unasked_step(job, step),
    )


def _refuse_recheck(job: Job) -> Refusal:
    return Refusal(
        code="not_waiting",
        message=f"job {job.public_id} ({job.state}) was not suspended by its worker; "
        "nothing was sent",
    )


def _refuse_unasked_step(job: Job, step: str) -> Refusal:
    if (job.wait_for or "").startswith(RESOLVE):
        waits = f"asks about step {(job.wait_for or '').removeprefix(RESOLVE)!r}"
    else:
        waits = f"waits for {job.wait_for!r}" if job.wait_for else "waits for nothing"
    return Refusal(
        code="not_waiting",
        message=f"job {job.public_id} ({job.state}) does not ask about step {step!r}: it {waits}",
    )
