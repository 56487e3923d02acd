"""Approvals (case 36): distinct people, none who asked for it, in time, and once each."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.errors import BadData, Forbidden, Refused, RequestIdReused, StaleRevision
from holdfast.flow.admit import expire_approvals
from holdfast.flow.approve import Approver, approve, deny_approval
from holdfast.flow.cancel import cancel
from holdfast.flow.hold import hold, unhold
from holdfast.flow.people import identities
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.decide import decide
from holdfast.lifecycle.record import Actor, Refusal
from holdfast.lifecycle.states import EventType, Link, Role, State
from holdfast.ports.models import Clock
from holdfast.ports.store import Store
from holdfast.queries.approvals import list_approvals
from holdfast.queries.why import reasons as r
from holdfast.testing.factories import CONTROL
from tests.flow.policies import CANCELS, HOLDS, ONE, TOKENS, TWO, person, submitted
from tests.queries.why.acts import ask

pytestmark = pytest.mark.req("A13")


@pytest.fixture
def store(either_store: Store) -> Store:
    """Both engines."""
    return either_store


async def types(store: Store, job: Any) -> list[EventType]:
    return [event.type for event in await store.events(job.id)]


async def apply(store: Store, book: str) -> None:
    assert await store.apply_policy(book, actor="ann") is not None


async def test_two_people_approve_and_the_second_admits_in_the_same_commit(store: Store) -> None:
    await apply(store, TWO)
    job = await submitted(store)

    job = await approve(store, job.id, person("ann"), reason="looks good")
    assert (job.state, len(job.held_by)) == (State.PENDING, 1)
    job = await approve(store, job.id, person("bob"))

    assert (job.state, job.held_by) == (State.QUEUED, ())
    approved, admitted = (await store.events(job.id))[-2:]
    assert (approved.type, admitted.type) == (EventType.APPROVED, EventType.ADMITTED)
    assert approved.actor == f"control:bob/{TOKENS['bob']}"
    [first] = await store.events(job.id, limit=1)
    assert first.digest is not None
    assert approved.facts.approved == first.digest.hex()
    assert admitted.facts.rules == first.facts.rules


@pytest.mark.parametrize(
    "same",
    [
        person("ann"),
        Approver(name="ann", token_id="f" * 20, role="operator"),
        Approver(name="another name", token_id=TOKENS["ann"], role="operator"),
    ],
    ids=["token", "name", "another-name"],
)
async def test_one_person_counts_once_by_any_of_its_names(store: Store, same: Approver) -> None:
    await apply(store, TWO)
    job = await approve(store, (await submitted(store)).id, person("ann"))

    with pytest.raises(Refused) as refused:
        await approve(store, job.id, same)

    assert refused.value.code == "already_approved"
    assert (await store.get([job.id]))[0] == job


async def test_who_submitted_a_job_or_one_it_descends_from_does_not_approve_it(
    store: Store,
) -> None:
    await apply(store, TWO)
    grandparent = await submitted(store, by="ann", task="plan")
    parent = await submitted(
        store, by="bob", task="plan", parent_id=grandparent.id, link_kind=Link.CHILD
    )
    job = await submitted(store, by="eve", parent_id=parent.id, link_kind=Link.CHILD)

    for name in ("eve", "bob", "ann"):
        with pytest.raises(Refused) as refused:
            await approve(store, job.id, person(name))
        assert refused.value.code == "approver_is_submitter"

    assert len((await approve(store, job.id, person("cem"))).held_by) == 1


async def test_a_role_that_the_rule_does_not_name_neither_approves_nor_denies(
    store: Store,
) -> None:
    await apply(store, TWO)
    job = await submitted(store)

    for act in (approve, deny_approval):
        with pytest.raises(Forbidden) as refused:
            await act(store, job.id, person("ann", "submitter"))
        assert refused.value.code == "approver_role"


async def test_who_has_the_store_itself_needs_no_role(store: Store) -> None:
    await apply(store, TWO)
    job = await submitted(store)

    job = await approve(store, job.id, Approver(name="dan", role="admin"))

    assert job.held_by == ("approval:two/1/0",)


async def test_a_denial_is_not_taken_for_the_approval_of_the_same_request_id(store: Store) -> None:
    await apply(store, TWO)
    job = await submitted(store)
    await approve(store, job.id, person("ann"), request_id="r")

    with pytest.raises(RequestIdReused):
        await deny_approval(store, job.id, person("ann"), request_id="r")


async def test_a_hold_by_a_rule_with_the_longest_id_is_lifted(store: Store) -> None:
    rule = "r" * 100
    await apply(store, HOLDS.replace('"wait"', f'"{rule}"'))
    job = await submitted(store)

    job = await unhold(store, job.id, CONTROL, f"policy-hold:{rule}")

    assert job.state is State.QUEUED


async def test_a_person_denies_and_that_is_told_apart_from_a_rule(store: Store) -> None:
    await apply(store, TWO)
    job = await submitted(store)

    job = await deny_approval(store, job.id, person("ann"), reason="not on a Friday")

    assert (job.state, job.error_code) == (State.DENIED, "denied_by_person")
    [denied] = await store.latest_events(job.id, [EventType.DENIED])
    assert (denied.actor, denied.reason) == (f"control:ann/{TOKENS['ann']}", "not on a Friday")
    with pytest.raises(Refused) as refused:
        await approve(store, job.id, person("bob"))
    assert refused.value.code == "no_approval_awaited"


async def test_two_people_at_once_are_two_and_one_person_at_once_is_one(store: Store) -> None:
    await apply(store, TWO)
    both, alone = await submitted(store), await submitted(store)

    await asyncio.gather(*(approve(store, both.id, person(name)) for name in ("ann", "bob")))
    answers = await asyncio.gather(
        *(approve(store, alone.id, person("ann")) for _ in range(3)), return_exceptions=True
    )

    [first, second] = await store.get([both.id, alone.id])
    assert first is not None
    assert second is not None
    assert (first.state, second.state) == (State.QUEUED, State.PENDING)
    assert (await types(store, second)).count(EventType.APPROVED) == 1
    assert sum(isinstance(one, Refused) for one in answers) == 2


async def test_an_approval_that_races_a_denial_ends_in_one_of_the_two(store: Store) -> None:
    await apply(store, ONE)
    job = await submitted(store)

    await asyncio.gather(
        approve(store, job.id, person("ann")),
        deny_approval(store, job.id, person("bob")),
        return_exceptions=True,
    )

    [after] = await store.get([job.id])
    assert after is not None
    ends = {State.QUEUED: EventType.ADMITTED, State.DENIED: EventType.DENIED}
    assert (await types(store, job))[-1] is ends[after.state]


async def test_a_lost_reply_is_repeated_without_a_second_approval(store: Store) -> None:
    await apply(store, TWO)
    job = await submitted(store)

    first = await approve(store, job.id, person("ann"), request_id="r")
    again = await approve(store, job.id, person("ann"), request_id="r")

    assert again == first
    assert (await types(store, job)).count(EventType.APPROVED) == 1


async def test_what_has_changed_since_it_was_seen_is_not_approved(store: Store) -> None:
    await apply(store, TWO)
    job = await submitted(store)
    await approve(store, job.id, person("ann"))

    with pytest.raises(StaleRevision):
        await approve(store, job.id, person("bob"), expected_rev=job.rev)


async def test_a_cancelled_job_is_not_approved(store: Store) -> None:
    await apply(store, ONE)
    job = await submitted(store)
    await cancel(store, job.id, CONTROL)

    with pytest.raises(Refused):
        await approve(store, job.id, person("ann"))


class Later:
    """A store whose clock is ahead."""

    def __init__(self, inner: Store, seconds: int) -> None:
        self._inner, self._by = inner, seconds * 1_000_000

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def clock(self) -> Clock:
        clock = await self._inner.clock()
        return Clock(clock.now + self._by, clock.epoch, clock.ahead, clock.step)


@pytest.mark.parametrize(
    ("book", "end", "code"),
    [(ONE, State.DENIED, "approval_expired"), (CANCELS, State.CANCELLED, "cancelled")],
)
async def test_nobody_in_time_ends_it_as_the_rule_says_and_says_so(
    store: Store, book: str, end: State, code: str
) -> None:
    await apply(store, book)
    job = await submitted(store)
    later: Any = Later(store, 3600)
    assert (await expire_approvals(store, "s")).written == 0

    with pytest.raises(Refused) as refused:
        await approve(later, job.id, person("ann"))
    assert refused.value.code == "approval_expired"
    assert (await expire_approvals(later, "s")).ended == 1

    [after] = await store.get([job.id])
    assert after is not None
    assert (after.state, after.error_code) == (end, code)


class Counting:
    """A store that counts what it is asked."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self.calls: list[str] = []
        self.read = 0

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        async def counted(*args: Any, **options: Any) -> Any:
            self.calls.append(name)
            answer = await method(*args, **options)
            self.read += len(answer) if name == "held" else 0
            return answer

        return counted


async def test_however_many_wait_a_pass_reads_one_of_each_name(store: Store) -> None:
    await apply(store, ONE)
    counts = []
    for more in (1, 200):
        for _ in range(more):
            await submitted(store)
        counting: Any = Counting(store)
        await expire_approvals(counting, "s")
        counts.append((counting.calls, counting.read))

    assert counts[0] == counts[1] == (["hold_names", "clock", "held"], 1)


async def test_what_awaits_approval_is_listed_once_by_page(store: Store) -> None:
    await apply(store, TWO)
    jobs = [await submitted(store) for _ in range(5)]
    await approve(store, jobs[0].id, person("ann"))

    first = await list_approvals(store, limit=3)
    assert first.next is not None
    rest = await list_approvals(store, after=first.next, limit=3)

    listed = [*first.approvals, *rest.approvals]
    assert {one.job.id for one in listed} == {job.id for job in jobs}
    assert (len(listed), rest.next) == (5, None)
    assert sorted(one.missing for one in listed) == [1, 2, 2, 2, 2]
    with pytest.raises(BadData):
        await list_approvals(store, after="nonsense")
    seen = await list_approvals(store, may_see=lambda job: job.id == jobs[2].id)
    assert [one.job.id for one in seen.approvals] == [jobs[2].id]


async def test_a_rule_s_hold_is_lifted_by_a_person_and_admits(store: Store) -> None:
    await apply(store, HOLDS)
    job = await submitted(store)
    assert job.held_by == ("policy-hold:wait",)

    job = await unhold(store, job.id, CONTROL, "policy-hold:wait")

    assert job.state is State.QUEUED
    assert (await types(store, job))[-2:] == [EventType.UNHELD, EventType.ADMITTED]


async def test_no_person_lifts_an_approval_by_unhold(store: Store) -> None:
    await apply(store, ONE)
    job = await submitted(store)

    for act, name in ((unhold, job.held_by[0]), (hold, "approval:x/1/0"), (hold, "policy")):
        with pytest.raises(Refused) as refused:
            await act(store, job.id, CONTROL, name)
        assert refused.value.code == "reserved_hold"


@pytest.mark.parametrize(
    "trick",
    [
        {"hold": "mine", "lifts": "approval:one/1/3600"},
        {"hold": "mine", "lifts": "policy"},
        {"hold": "mine", "holds": ("policy",)},
        {"hold": "mine", "holds": ("denied:one",)},
    ],
    ids=["lifts-approval", "lifts-policy", "places-policy", "places-denial"],
)
async def test_the_law_lets_no_person_s_hold_lift_or_place_what_rules_do(
    store: Store, trick: dict[str, Any]
) -> None:
    await apply(store, ONE)
    job = await submitted(store)
    assert job.held_by == ("approval:one/1/3600",)

    refusal = decide(job, c.Hold(actor=CONTROL, **trick))

    assert isinstance(refusal, Refusal)
    assert refusal.code == "reserved_hold"


async def test_not_even_the_scheduler_lifts_an_approval_by_a_hold(store: Store) -> None:
    await apply(store, ONE)
    job = await submitted(store)
    scheduler = Actor(Role.SCHEDULER, "s")

    refusal = decide(job, c.Hold(actor=scheduler, hold="mine", lifts=job.held_by[0]))

    assert isinstance(refusal, Refusal)


def test_an_actor_is_known_by_its_name_and_by_its_token() -> None:
    token = TOKENS["ann"]
    assert identities(f"gateway:ann/{token}") == {"ann", token}
    assert identities(f"gateway:{token}:host:1") >= {token}
    assert identities("control:ann@host") == {"ann@host"}
    # A worker's name has no role before it.
    assert identities(f"{token}:ab.1") >= {token}
    assert identities(f"{token}.0a1b") >= {token}


async def test_why_names_the_rule_the_roles_the_time_and_who_has_approved(store: Store) -> None:
    await apply(store, TWO)
    job = await submitted(store)
    await approve(store, job.id, person("ann"))

    _, reason = await ask(store, job, r.AwaitsApproval)

    assert (reason.rule, reason.missing, reason.roles) == ("two", 1, ("operator",))
    assert [one.by for one in reason.approved] == [f"control:ann/{TOKENS['ann']}"]
    assert reason.until is None
