"""One command on one job: done once, decided anew if somebody came first, never if fenced."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.errors import (
    LeaseConflictError,
    NoSuchJob,
    Refused,
    RequestIdReused,
    StaleRevision,
)
from holdfast.flow.command import perform
from holdfast.ids import mint_id, mint_request
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.rebase import REBASES
from holdfast.lifecycle.record import Actor, Change, Job
from holdfast.lifecycle.states import CancelMode, Role, State
from holdfast.lifecycle.submission import Submission
from holdfast.lifecycle.submit import submit
from holdfast.lifecycle.times import After
from holdfast.ports.models import ClaimRequest, Outcome, Rejected, Submitted
from holdfast.ports.store import Store

PEOPLE = Actor(Role.CONTROL, "ada")
SCHEDULER = Actor(Role.SCHEDULER, "s")


async def submitted(store: Store, **more: Any) -> Job:
    """Submit one job."""
    job = submit(Submission(id=mint_id(), task="t", **more), Actor(Role.GATEWAY, "g"))
    answer = (await store.submit([job]))[0]
    assert isinstance(answer, Submitted)
    return answer.job


async def claimed(store: Store, owner: str = "w") -> tuple[Job, Actor]:
    """Claim one job."""
    request = ClaimRequest(request_id=mint_request(), owner=owner, queues=("default",), limit=1)
    (one,) = await store.claim(request)
    return one.job, Actor(Role.OWNER, owner, one.job.attempt)


class Interrupting:
    """A store in which somebody else writes between a reader's look and its commit."""

    def __init__(self, store: Store, between: Callable[[], Awaitable[Any]], times: int) -> None:
        """Run `between` before each of the first commits."""
        self._store = store
        self._between = between
        self._left = times

    def __getattr__(self, name: str) -> Any:
        """All else is the store's."""
        return getattr(self._store, name)

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        """Let the other one in first."""
        if self._left:
            self._left -= 1
            await self._between()
        return await self._store.commit(changes)


@pytest.mark.req("C3")
async def test_a_stale_expected_rev_is_refused_and_changes_nothing(store: Store) -> None:
    job = await submitted(store)
    await perform(store, job.id, c.Hold(actor=PEOPLE, hold="a"))
    with pytest.raises(StaleRevision, match="is at revision 2, not 1"):
        await perform(store, job.id, c.Hold(actor=PEOPLE, hold="b"), expected_rev=1)
    assert len(await store.events(job.id)) == 2


@pytest.mark.req("C3")
async def test_an_expected_rev_of_the_caller_is_never_rebased(store: Store) -> None:
    job = await submitted(store)

    async def hold() -> None:
        await perform(store, job.id, c.Hold(actor=PEOPLE, hold="first"))

    with pytest.raises(StaleRevision):
        await perform(
            Interrupting(store, hold, 1),
            job.id,
            c.Hold(actor=PEOPLE, hold="second"),
            expected_rev=1,
        )
    assert (await store.get([job.id]))[0].held_by == ("first",)  # type: ignore[union-attr]


async def test_a_control_command_that_lost_the_race_is_decided_anew(store: Store) -> None:
    job = await submitted(store)

    async def hold() -> None:
        await perform(store, job.id, c.Hold(actor=PEOPLE, hold="first"))

    second = c.Hold(actor=PEOPLE, hold="second")
    after = await perform(Interrupting(store, hold, 1), job.id, second)
    assert after.held_by == ("first", "second")


async def test_a_command_on_a_job_that_others_always_change_first_is_written_under_its_lock(
    either_store: Store,
) -> None:
    store = either_store
    job = await submitted(store)
    names = iter(range(100))

    async def hold() -> None:
        await perform(store, job.id, c.Hold(actor=PEOPLE, hold=str(next(names))))

    late = c.Hold(actor=PEOPLE, hold="late")
    after = await perform(Interrupting(store, hold, 99), job.id, late)
    assert "late" in after.held_by
    assert next(names) == REBASES + 1, "the lock is taken only once that many were lost"


@pytest.mark.req("B5", "C6")
async def test_a_request_that_lands_twice_at_once_is_written_once_also_under_the_lock(
    either_store: Store,
) -> None:
    store = either_store
    job = await submitted(store)
    signal = c.SignalJob(actor=PEOPLE, name="go", request_id="r-1")
    names = iter(range(100))

    async def hold() -> None:
        await perform(store, job.id, c.Hold(actor=PEOPLE, hold=str(next(names))))

    class Twice(Interrupting):
        async def commit_locked(self, *args: Any, **more: Any) -> Outcome:
            await perform(store, job.id, signal)
            return await store.commit_locked(*args, **more)

    after = await perform(Twice(store, hold, 99), job.id, signal)
    assert [one.name for one in after.signals] == ["go"]


class Locked(Interrupting):
    """A store in which another transaction has the job's row locked, and writes meanwhile."""

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        """Find the row locked."""
        await self._between()
        return [Rejected(code="job_busy", message="it is locked") for _ in changes]


async def test_a_command_on_a_job_that_is_locked_is_decided_under_its_lock(
    either_store: Store,
) -> None:
    store = either_store
    job = await submitted(store)

    async def hold() -> None:
        await perform(store, job.id, c.Hold(actor=PEOPLE, hold="first"))

    second = c.Hold(actor=PEOPLE, hold="second")
    after = await perform(Locked(store, hold, 1), job.id, second)
    assert after.held_by == ("first", "second")


@pytest.mark.req("C3")
async def test_an_expected_rev_is_never_rebased_by_the_wait_for_a_lock(store: Store) -> None:
    job = await submitted(store)

    async def hold() -> None:
        await perform(store, job.id, c.Hold(actor=PEOPLE, hold="first"))

    second = c.Hold(actor=PEOPLE, hold="second")
    with pytest.raises(StaleRevision):
        await perform(Locked(store, hold, 1), job.id, second, expected_rev=1)
    assert (await store.get([job.id]))[0].held_by == ("first",)  # type: ignore[union-attr]


@pytest.mark.req("C4", "B6")
async def test_an_owner_who_lost_the_job_meanwhile_is_fenced(store: Store) -> None:
    await submitted(store)
    job, owner = await claimed(store)
    running = await perform(store, job.id, c.Start(actor=owner))

    async def released() -> None:
        await perform(store, job.id, c.Release(actor=owner))
        await claimed(store, "another")

    interrupted: Any = Interrupting(store, released, 1)
    with pytest.raises(LeaseConflictError) as caught:
        await perform(interrupted, running.id, c.Complete(actor=owner))
    assert caught.value.code == "lease_lost"
    assert (await store.get([job.id]))[0].owner == "another"  # type: ignore[union-attr]


@pytest.mark.req("B5", "C6")
async def test_a_request_id_again_is_success_and_changes_nothing(store: Store) -> None:
    job = await submitted(store)
    signal = c.SignalJob(actor=PEOPLE, name="go", body=b"1", request_id="r-1")
    first = await perform(store, job.id, signal)
    await perform(store, job.id, c.Hold(actor=PEOPLE, hold="x"))
    again = await perform(store, job.id, signal)
    assert first.rev == 2
    assert again.rev == 3
    assert [one.request_id for one in await store.events(job.id)].count("r-1") == 1


@pytest.mark.req("B5", "C6")
async def test_a_request_id_that_landed_first_through_another_path_is_not_repeated(
    store: Store,
) -> None:
    job = await submitted(store)
    signal = c.SignalJob(actor=PEOPLE, name="go", request_id="r-1")

    async def same_request() -> None:
        await perform(store, job.id, signal)

    after = await perform(Interrupting(store, same_request, 1), job.id, signal)
    assert [one.name for one in after.signals] == ["go"]


@pytest.mark.parametrize(
    "other",
    [
        c.SignalJob(actor=PEOPLE, name="go", body=b"2", request_id="r-1"),
        c.Hold(actor=PEOPLE, hold="x", request_id="r-1"),
        c.SignalJob(actor=Actor(Role.CONTROL, "eve"), name="go", body=b"1", request_id="r-1"),
    ],
    ids=["other body", "other operation", "other actor"],
)
async def test_a_request_id_for_something_else_is_refused(store: Store, other: c.Command) -> None:
    job = await submitted(store)
    signal = c.SignalJob(actor=PEOPLE, name="go", body=b"1", request_id="r-1")
    await perform(store, job.id, signal)
    with pytest.raises(RequestIdReused):
        await perform(store, job.id, other)
    assert len(await store.events(job.id)) == 2


LATER = 2_000_000_000_000_000


@pytest.mark.parametrize(
    ("command", "other"),
    [
        (c.SignalJob(actor=PEOPLE, name="approve"), c.SignalJob(actor=PEOPLE, name="reject")),
        (c.Hold(actor=PEOPLE, hold="a"), c.Hold(actor=PEOPLE, hold="b")),
        (
            c.Reschedule(actor=PEOPLE, run_at=LATER),
            c.Reschedule(actor=PEOPLE, run_at=LATER + 1),
        ),
        (
            c.Reschedule(actor=PEOPLE, run_at=After(5)),
            c.Reschedule(actor=PEOPLE, run_at=After(6)),
        ),
        (c.Deny(actor=SCHEDULER, rule="a"), c.Deny(actor=SCHEDULER, rule="b")),
    ],
    ids=["signal", "hold", "instant", "span", "rule"],
)
async def test_a_request_id_stands_for_every_word_of_its_command(
    store: Store, command: c.Command, other: c.Command
) -> None:
    job = await submitted(store)
    command, other = (replace(one, request_id="r-1") for one in (command, other))
    first = await perform(store, job.id, command)
    assert await perform(store, job.id, command) == first
    with pytest.raises(RequestIdReused):
        await perform(store, job.id, other)
    assert len(await store.events(job.id)) == 2


async def test_an_owners_request_id_stands_for_every_word_of_its_command(store: Store) -> None:
    await submitted(store)
    job, owner = await claimed(store)
    await perform(store, job.id, c.Start(actor=owner))
    soft = c.RequestCancel(actor=PEOPLE, request_id="r-1")
    await perform(store, job.id, soft)
    with pytest.raises(RequestIdReused):
        await perform(store, job.id, replace(soft, mode=CancelMode.HARD))
    fail = c.Fail(actor=owner, error_code="boom", body=b"1", request_id="r-2")
    failed = await perform(store, job.id, fail)
    assert await perform(store, job.id, fail) == failed
    for other in ({"error_code": "bang"}, {"exit_code": 1}, {"body": None}):
        with pytest.raises(RequestIdReused):
            await perform(store, job.id, replace(fail, **other))


async def test_a_retry_that_was_turned_into_a_cancel_may_be_sent_again(store: Store) -> None:
    await submitted(store)
    job, owner = await claimed(store)
    await perform(store, job.id, c.RequestCancel(actor=PEOPLE))
    retry = c.Retry(actor=owner, error_code="boom", request_id="r-1")
    turned = await perform(store, job.id, retry)
    assert turned.state is State.CANCELLED
    assert await perform(store, job.id, retry) == turned
    with pytest.raises(RequestIdReused):
        await perform(store, job.id, c.Complete(actor=owner, request_id="r-1"))


@pytest.mark.req("A14")
async def test_the_same_state_twice_is_success(store: Store) -> None:
    job = await submitted(store, admitted=False)
    await perform(store, job.id, c.Admit(actor=SCHEDULER))
    again = await perform(store, job.id, c.Admit(actor=SCHEDULER))
    assert (again.state, again.rev) == (State.QUEUED, 2)


@pytest.mark.req("A15", "C13")
async def test_a_result_for_a_terminal_job_is_recorded_and_changes_nothing(store: Store) -> None:
    job = await submitted(store)
    done = await perform(store, job.id, c.Cancel(actor=PEOPLE))
    sender = Actor(Role.WORKER, "late", 1)
    late = c.LateResult(actor=sender, state="SUCCEEDED", body=b"1")
    after = await perform(store, job.id, late)
    assert (after.state, after.error_code, after.finished_at) == (
        done.state,
        done.error_code,
        done.finished_at,
    )
    assert (await perform(store, job.id, late)).rev == after.rev == done.rev + 1


@pytest.mark.req("A12")
async def test_a_role_that_may_not_do_it_is_refused_by_name(store: Store) -> None:
    job = await submitted(store, admitted=False)
    with pytest.raises(Refused, match="worker may not admit") as caught:
        await perform(store, job.id, c.Admit(actor=Actor(Role.WORKER, "w")))
    assert caught.value.code == "role_not_allowed"
    assert caught.value.job_id == str(job.id)


async def test_an_unknown_job_is_named(store: Store) -> None:
    unknown = mint_id()
    with pytest.raises(NoSuchJob, match=str(unknown)):
        await perform(store, unknown, c.Cancel(actor=PEOPLE))
