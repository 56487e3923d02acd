"""Tell: follow all events, and make a job of every message that a webhook is to be sent.

The cursor moves on only once the jobs are there, and their keys let none be made twice: so whoever
is killed in between is made up for, and any number may follow at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import Struct

from holdfast.errors import KeyBusy
from holdfast.identity import mint_id
from holdfast.lifecycle.job import Actor, Job, LoggedEvent, NewJob
from holdfast.lifecycle.policy import Policy
from holdfast.lifecycle.states import TERMINAL
from holdfast.lifecycle.submit import Submission, submit
from holdfast.ports import Store, SubmitRefused, Webhook

FOLLOWER = "webhooks"
"""Whose cursor says how far the ends of jobs have been told."""
PAGE = 1000


class Route(Struct, frozen=True, kw_only=True):
    """How messages travel: as jobs of this task, on this queue, under these terms."""

    task: str
    queue: str
    policy: Policy


class Errand(Struct, frozen=True, kw_only=True):
    """What a job is asked that delivers a message: whom to tell of which event."""

    webhook: str
    internal_id: str
    """The job's."""
    rev: int


class Told(Struct, kw_only=True):
    """What one look did."""

    webhooks: int = 0
    """How many there are to be told."""
    events: int = 0
    messages: int = 0
    """Jobs made, and those that were there already."""
    refused: list[str] = []
    more: bool = False
    """There may be more events than it has looked at."""


async def tell(store: Store, actor: Actor, route: Route, *, limit: int = PAGE) -> Told:
    """Look once at what came since, and make jobs of it."""
    # In this order: a webhook that comes after the list is told of what comes after the end.
    end = await store.tail_end()
    hooks = await _all_webhooks(store)
    at = await store.cursor(FOLLOWER)
    if at is None or not hooks:
        # Who makes the first webhook sets the cursor: until then there is nothing to keep up with.
        if at != end and (hooks or at is not None):
            await store.move_cursor(FOLLOWER, before=at, to=end)
        return Told(webhooks=len(hooks))
    tail = await store.tail(at, limit=limit)
    report = Told(webhooks=len(hooks), events=len(tail.events), more=len(tail.events) == limit)
    await _make_jobs(store, await _messages(store, actor, route, tail.events, hooks), report)
    if tail.cursor != at:
        await store.move_cursor(FOLLOWER, before=at, to=tail.cursor)
    return report


async def _all_webhooks(store: Store) -> list[Webhook]:
    hooks = await store.webhooks(limit=PAGE)
    page = hooks
    while len(page) == PAGE:
        page = await store.webhooks(before=page[-1].key, limit=PAGE)
        hooks += page
    return hooks


async def _messages(
    store: Store,
    actor: Actor,
    route: Route,
    events: Sequence[LoggedEvent],
    hooks: Sequence[Webhook],
) -> list[NewJob]:
    endings = [event for event in events if is_ending(event)]
    jobs = await store.get([event.id for event in endings])
    return [
        _job(job, event, hook, actor, route)
        for job, event in zip(jobs, endings, strict=True)
        # A message's own end is told to nobody: that would never end.
        if job is not None and job.task != route.task
        for hook in hooks
        if event.at >= hook.created_at and hook.tells(job)
    ]


def is_ending(event: LoggedEvent) -> bool:
    """Whether an event ended its job: a later note on it does not end it again."""
    return event.to_state in TERMINAL and event.from_state not in TERMINAL


def _job(job: Job, event: LoggedEvent, hook: Webhook, actor: Actor, route: Route) -> NewJob:
    errand = Errand(webhook=hook.id, internal_id=str(job.id), rev=event.rev)
    submission = Submission(
        id=mint_id(),
        task=route.task,
        body=msgspec.json.encode(errand),
        tenant=hook.tenant,
        queue=route.queue,
        policy=route.policy,
        dedupe_key=f"{hook.id}/{job.id}/{event.rev}",
        labels={"webhook": hook.id, "job": str(job.id)},
    )
    return submit(submission, actor, internal=True)


async def _make_jobs(store: Store, jobs: Sequence[NewJob], report: Told) -> None:
    for outcome in await store.submit(jobs) if jobs else []:
        if isinstance(outcome, SubmitRefused) and outcome.code == KeyBusy.code:
            # Somebody else may be making it, or may fail to: the cursor stays before it.
            raise KeyBusy(outcome.message)
        if isinstance(outcome, SubmitRefused):
            report.refused.append(outcome.message)
        else:
            report.messages += 1
