"""Handlers that change one job: cancel, signal, resolve, hold, unhold, reschedule."""

from __future__ import annotations

from typing import Any

from holdfast.auth.authorization import SCOPES, Scope
from holdfast.errors import Forbidden, Refused, about
from holdfast.flow.cancel import cancel
from holdfast.flow.hold import hold, reschedule, unhold
from holdfast.flow.options import read_due_time
from holdfast.flow.signal import resolve, signal
from holdfast.lifecycle.holds import PERSON_HOLD
from holdfast.lifecycle.payload import check_body
from holdfast.lifecycle.record import Job
from holdfast.operations import requests as q
from holdfast.operations.scope import CallerScope


async def cancel_job(scope: CallerScope, request: q.CancelJob) -> Job:
    id_ = await scope.id_of(request.job)
    terms = _terms(request)
    return await cancel(
        scope.store, id_, scope.control, hard=request.hard, reason=request.reason, **terms
    )


async def kill_job(scope: CallerScope, request: q.KillJob) -> Job:
    """Cancel a job; refuse if it has ended in another way."""
    job = await cancel_job(scope, q.CancelJob(job=request.job, **_terms(request)))
    if job.terminal and not job.cancelled:
        text = f"job {job.public_id} has already ended: {job.state}"
        raise Refused(text, code="already_ended", job_id=job.public_id)
    return job


async def send_signal(scope: CallerScope, request: q.SendSignal) -> Job:
    with about("payload"):
        body = check_body(bytes(request.payload), f"the payload of signal {request.name!r}")
    id_, batched = await scope.id_of(request.job), scope.session.batched
    limits = await scope.session.limits.get()
    async with batched.turn(id_):
        return await signal(
            batched,
            id_,
            scope.control,
            request.name,
            body,
            limit=limits.signals,
            **_terms(request),
        )


async def resolve_step(scope: CallerScope, request: q.ResolveStep) -> Job:
    id_, batched = await scope.id_of(request.job), scope.session.batched
    limits = await scope.session.limits.get()
    async with batched.turn(id_):
        return await resolve(
            batched,
            id_,
            scope.control,
            request.step,
            happened=request.happened,
            result=request.result,
            force=request.force,
            limit=limits.signals,
            **_terms(request),
        )


async def hold_job(scope: CallerScope, request: q.HoldJob | q.UnholdJob) -> Job:
    id_ = await scope.id_of(request.job)
    act = hold if isinstance(request, q.HoldJob) else unhold
    _check_hold(scope, request.hold)
    return await act(
        scope.store, id_, scope.control, request.hold, reason=request.reason, **_terms(request)
    )


def _check_hold(scope: CallerScope, hold: str) -> None:
    """Refuse a submitter who would lift what a rule holds until a person has looked at it."""
    if hold.startswith(PERSON_HOLD) and Scope.APPROVE not in SCOPES[scope.role]:
        raise Forbidden(
            f"role {scope.role.value!r} lacks scope 'approve', which hold {hold!r} needs"
        )


async def reschedule_job(scope: CallerScope, request: q.RescheduleJob) -> Job:
    id_ = await scope.id_of(request.job)
    due = read_due_time(request.delay, request.run_at)
    return await reschedule(
        scope.store, id_, scope.control, due, reason=request.reason, **_terms(request)
    )


def _terms(request: q.ChangeJob) -> dict[str, Any]:
    return {"request_id": request.request_id, "expected_rev": request.expected_rev}
