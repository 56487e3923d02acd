"""Notify: follow all events, and submit a job for every message that a webhook is to receive:
of the ends of jobs, and of approvals that are requested.

The cursor moves on only once the jobs are there, and their keys let none be made twice: the next
pass makes up for one that was killed in between, and any number may follow at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from holdfast.admission.book import Verdict
from holdfast.errors import KeyBusy
from holdfast.flow.submit import KnownTask, build_submission
from holdfast.lifecycle.holds import UNADMITTED
from holdfast.lifecycle.record import Actor, Job, LoggedEvent, NewJob
from holdfast.lifecycle.submit import submit
from holdfast.ports.models import SubmitRefused, Webhook
from holdfast.ports.store import Store

FOLLOWER = "webhooks"
"""The name of the cursor that holds how far the ends of jobs have been reported."""
PAGE = 1000


class DeliveryRequest(Struct, frozen=True, kw_only=True):
    """The arguments of a job that delivers a message: which webhook, and the event to report."""

    webhook: str
    internal_id: str
    """The job's."""
    rev: int


class Notified(Struct, kw_only=True):
    """What one pass did."""

    webhooks: int = 0
    """How many webhooks there are."""
    events: int = 0
    messages: int = 0
    """Jobs made, and those that were there already."""
    refused: list[str] = []
    more: bool = False
    """There may be more events than it has read."""


async def notify(store: Store, actor: Actor, task: KnownTask, *, limit: int = PAGE) -> Notified:
    """Read the next events, and submit a job of `task` for every message about them."""
    # In this order: a webhook that is made after the list is read starts after the end.
    end = await store.tail_end()
    hooks = await _read_all_webhooks(store)
    at = await store.cursor(FOLLOWER)
    if at is None or not hooks:
        # The maker of the first webhook sets the cursor: until then there is nothing to follow.
        if at != end and (hooks or at is not None):
            await store.move_cursor(FOLLOWER, before=at, to=end)
        return Notified(webhooks=len(hooks))
    tail = await store.tail(at, limit=limit)
    report = Notified(webhooks=len(hooks), events=len(tail.events), more=len(tail.events) == limit)
    await _submit_messages(
        store, await _build_messages(store, actor, task, tail.events, hooks), report
    )
    if tail.cursor != at:
        await store.move_cursor(FOLLOWER, before=at, to=tail.cursor)
    return report


async def _read_all_webhooks(store: Store) -> list[Webhook]:
    hooks = await store.webhooks(limit=PAGE)
    page = hooks
    while len(page) == PAGE:
        page = await store.webhooks(before=page[-1].key, limit=PAGE)
        hooks += page
    return hooks


def is_reported(event: LoggedEvent) -> bool:
    """Return whether webhooks may be notified of an event: an end, or a requested approval."""
    return event.ends or requests_approval(event)


def requests_approval(event: LoggedEvent) -> bool:
    """Return whether an event makes its job await the approval of people."""
    return event.facts.verdict == Verdict.APPROVE and event.to_state in UNADMITTED


async def _build_messages(
    store: Store,
    actor: Actor,
    task: KnownTask,
    events: Sequence[LoggedEvent],
    hooks: Sequence[Webhook],
) -> list[NewJob]:
    reported = [event for event in events if is_reported(event)]
    jobs = await store.get([event.id for event in reported])
    return [
        _build_message(job, event, hook, actor, task)
        for job, event in zip(jobs, reported, strict=True)
        # The end of a message's own job is not reported: that would never end.
        if job is not None and job.task != task.name
        for hook in hooks
        if event.at >= hook.created_at
        and (hook.reports(job) if event.ends else hook.reports_request(job))
    ]


def _build_message(
    job: Job, event: LoggedEvent, hook: Webhook, actor: Actor, task: KnownTask
) -> NewJob:
    request = DeliveryRequest(webhook=hook.id, internal_id=str(job.id), rev=event.rev)
    given = {
        "tenant": hook.tenant,
        "dedupe_key": f"{hook.id}/{job.id}/{event.rev}",
        "labels": {"webhook": hook.id, "job": str(job.id)},
    }
    return submit(build_submission(task, msgspec.json.encode(request), given), actor, internal=True)


async def _submit_messages(store: Store, jobs: Sequence[NewJob], report: Notified) -> None:
    for outcome in await store.submit(jobs) if jobs else []:
        if isinstance(outcome, SubmitRefused) and outcome.code == KeyBusy.code:
            # Another transaction may be making it, or may fail to: the cursor stays before it.
            raise KeyBusy(outcome.message)
        if isinstance(outcome, SubmitRefused):
            report.refused.append(outcome.message)
        else:
            report.messages += 1
