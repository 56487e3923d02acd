"""Telling: every end of a job that a webhook wants to hear of becomes one job, and no other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from holdfast.errors import BadData, StoreUnavailable
from holdfast.flow.notify import FOLLOWER, DeliveryRequest, Notified, notify
from holdfast.flow.submit import NamedTask
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.record import Actor, Job, NewJob
from holdfast.lifecycle.states import LIVE, TERMINAL, Role, State
from holdfast.ports.models import Query, SubmitOutcome, Webhook
from holdfast.ports.store import Store
from holdfast.testing.factories import CONTROL, JANITOR, new_webhook, owner_of
from holdfast.testing.store_actions import claim_one, do, job_in
from holdfast.webhooks.registry import WantedWebhook, WebhookRegistry

ACTOR = Actor(Role.GATEWAY, "postman")
ROUTE = NamedTask("holdfast.tell", queue="holdfast.mail", policy=Policy(max_attempts=7))


async def told(store: Any, **wishes: Any) -> Notified:
    """Look until there is nothing new; the tail may be held back for a moment by what else runs."""
    total = Notified()
    while True:
        report = await notify(store, ACTOR, ROUTE, **wishes)
        assert report.refused == []
        total.messages += report.messages
        if not report.events and await caught_up(store):
            return total


async def caught_up(store: Any) -> bool:
    """Whether nothing lies behind the follower's cursor."""
    at = await store.cursor(FOLLOWER)
    return at is not None and not (await store.tail(at)).events


async def hook(store: Store, **wishes: Any) -> Webhook:
    """Have a webhook."""
    made = await WebhookRegistry(store, actor="control:ann").add(
        WantedWebhook(**({"url": "https://hooks.example/"} | wishes))
    )
    [found] = await store.look_up_webhooks(made.about.id, tenant=made.about.tenant)
    return found


async def messages(store: Store) -> list[tuple[str, str, int]]:
    """List what is on its way: to whom, of which job, of which revision."""
    found = []
    for job in (await store.find(Query(task=ROUTE.name, limit=1000))).jobs:
        [first] = await store.events(job.id, limit=1)
        assert first.body is not None
        errand = msgspec.json.decode(first.body, type=DeliveryRequest)
        found.append((errand.webhook, errand.internal_id, errand.rev))
    return sorted(found)


def about(one: Webhook, *jobs: Job) -> list[tuple[str, str, int]]:
    """Tell what a webhook is to hear of jobs as they ended."""
    return sorted((one.id, str(job.id), job.rev) for job in jobs)


async def test_every_end_becomes_one_job_and_nothing_else_does(either_store: Store) -> None:
    one = await hook(either_store)
    ended = [await job_in(either_store, state) for state in sorted(TERMINAL)]
    for state in sorted(LIVE):
        await job_in(either_store, state)
    report = await told(either_store)

    assert report.messages == len(ended)
    assert await messages(either_store) == about(one, *ended)
    made = (await either_store.find(Query(task=ROUTE.name))).jobs[0]
    assert (made.queue, made.tenant, made.policy) == (ROUTE.queue, "default", ROUTE.policy)


async def test_a_note_on_an_ended_job_is_no_end(either_store: Store) -> None:
    one = await hook(either_store)
    letter = await job_in(either_store, State.DEAD_LETTERED)
    noted = await do(either_store, letter, c.Discarded(actor=CONTROL))
    await do(either_store, noted, c.Clean(actor=JANITOR))
    await told(either_store)

    assert await messages(either_store) == about(one, letter)


async def test_a_webhook_hears_only_what_it_asked_for(either_store: Store) -> None:
    failures = await hook(either_store, states=[State.FAILED])
    mails = await hook(either_store, queue="mails")
    greetings = await hook(either_store, task="other")
    theirs = await hook(either_store, tenant="theirs")
    failed = await job_in(either_store, State.FAILED)
    mailed = await job_in(either_store, State.SUCCEEDED, queue="mails")
    other = await job_in(either_store, State.SUCCEEDED, task="other")
    foreign = await job_in(either_store, State.SUCCEEDED, tenant="theirs")
    await told(either_store)

    assert await messages(either_store) == sorted(
        about(failures, failed)
        + about(mails, mailed)
        + about(greetings, other)
        + about(theirs, foreign)
    )


async def test_what_ended_before_a_webhook_was_made_is_not_told(either_store: Store) -> None:
    await job_in(either_store, State.SUCCEEDED)
    one = await hook(either_store)
    between = await job_in(either_store, State.SUCCEEDED)
    two = await hook(either_store, url="https://hooks.example/2")
    last = await job_in(either_store, State.SUCCEEDED)
    await told(either_store)

    assert await messages(either_store) == sorted(about(one, between, last) + about(two, last))


async def test_a_removed_webhook_is_told_nothing_more(either_store: Store) -> None:
    one = await hook(either_store)
    await job_in(either_store, State.SUCCEEDED)
    await either_store.remove_webhook(one.id, tenant=one.tenant, actor="control:ann")
    await told(either_store)

    assert await messages(either_store) == []


@pytest.mark.parametrize("tenant", ["", "a\0b", "x" * 201])
async def test_a_tenant_that_no_store_can_hold_is_refused(either_store: Store, tenant: str) -> None:
    with pytest.raises(BadData, match="tenant"):
        await hook(either_store, tenant=tenant)


async def test_where_nobody_was_ever_told_nothing_is_written(either_store: Store) -> None:
    await job_in(either_store, State.SUCCEEDED)
    assert (await notify(either_store, ACTOR, ROUTE)).events == 0
    assert await either_store.cursor(FOLLOWER) is None


async def test_a_cursor_that_was_lost_begins_anew(either_store: Store) -> None:
    """As where a webhook was written past the desk."""
    kept = await either_store.add_webhook(new_webhook())
    await told(either_store)
    job = await job_in(either_store, State.SUCCEEDED)
    await told(either_store)

    assert await messages(either_store) == about(kept, job)


async def test_once_nobody_is_left_to_tell_the_cursor_moves_all_the_same(
    either_store: Store,
) -> None:
    """Else the first webhook after a year would have to wait for a year's events to be read."""
    old = await hook(either_store)
    await either_store.remove_webhook(old.id, tenant=old.tenant, actor="control:ann")
    before = await either_store.cursor(FOLLOWER)
    await job_in(either_store, State.SUCCEEDED)
    while not await caught_up(either_store):
        assert (await notify(either_store, ACTOR, ROUTE)).events == 0
    assert await either_store.cursor(FOLLOWER) != before
    one = await hook(either_store)
    job = await job_in(either_store, State.SUCCEEDED)
    await told(either_store)

    assert await messages(either_store) == about(one, job)


async def test_the_end_of_a_message_is_told_to_nobody(either_store: Store) -> None:
    await hook(either_store)
    await job_in(either_store, State.SUCCEEDED)
    assert (await told(either_store)).messages == 1
    message = (await claim_one(either_store, ROUTE.queue)).job
    owner = owner_of(message)
    message = await do(either_store, message, c.Start(actor=owner))
    await do(either_store, message, c.Complete(actor=owner))
    assert (await told(either_store)).messages == 0


class Dies:
    """A store that is gone after the jobs were made, before the cursor was moved."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def move_cursor(self, name: str, *, before: str | None, to: str) -> bool:
        raise StoreUnavailable("it died here")


async def test_one_that_died_before_its_cursor_moved_is_made_up_for(either_store: Store) -> None:
    one = await hook(either_store)
    ended = await job_in(either_store, State.SUCCEEDED)
    with pytest.raises(StoreUnavailable):
        await told(Dies(either_store))
    await told(either_store)

    assert await messages(either_store) == about(one, ended)


class DiesEarlier(Dies):
    """A store that is gone before the jobs are made."""

    async def submit(self, jobs: Sequence[NewJob]) -> list[SubmitOutcome]:
        raise StoreUnavailable("it died here")


async def test_one_that_died_before_its_jobs_were_made_is_made_up_for(either_store: Store) -> None:
    one = await hook(either_store)
    ended = await job_in(either_store, State.SUCCEEDED)
    with pytest.raises(StoreUnavailable):
        await told(DiesEarlier(either_store))
    await told(either_store)

    assert await messages(either_store) == about(one, ended)


class Behind:
    """A store whose cursor is where it was before somebody else moved it."""

    def __init__(self, inner: Store, at: str | None) -> None:
        self._inner, self._at = inner, at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def cursor(self, name: str) -> str | None:
        return self._at


async def test_two_who_follow_at_once_make_each_message_once(either_store: Store) -> None:
    one = await hook(either_store)
    behind: Any = Behind(either_store, await either_store.cursor(FOLLOWER))
    ended = await job_in(either_store, State.SUCCEEDED)
    await told(either_store)
    moved = await either_store.cursor(FOLLOWER)
    report = await notify(behind, ACTOR, ROUTE)

    assert report.messages == 1
    assert await messages(either_store) == about(one, ended)
    assert await either_store.cursor(FOLLOWER) == moved, "not turned back"


async def test_many_events_are_read_in_stretches(either_store: Store) -> None:
    one = await hook(either_store)
    ended = [await job_in(either_store, State.SUCCEEDED) for _ in range(5)]
    first = await notify(either_store, ACTOR, ROUTE, limit=3)
    assert first.more or not first.events
    await told(either_store, limit=3)

    assert await messages(either_store) == about(one, *ended)


class ManyWebhooks:
    """A store that lists webhooks a few at a time."""

    def __init__(self, inner: Store, page: int) -> None:
        self._inner, self._page = inner, page
        self.pages = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def webhooks(
        self, *, before: tuple[str, str] | None = None, limit: int = 100
    ) -> list[Webhook]:
        self.pages += 1
        return await self._inner.webhooks(before=before, limit=min(limit, self._page))


async def test_all_webhooks_are_asked_however_many(
    either_store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.flow.notify.PAGE", 2)
    await hook(either_store)
    for number in range(4):
        await either_store.add_webhook(new_webhook(id="same", tenant=f"t{number}"))
    await job_in(either_store, State.SUCCEEDED)
    few: Any = ManyWebhooks(either_store, 2)
    report = await notify(few, ACTOR, ROUTE)
    assert report.webhooks == 5
    assert report.messages + (await told(few)).messages == 1
    assert few.pages >= 3
