"""What an operation asks for beyond its row in the table: one named test per condition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.record import Actor, Change, Refusal
from holdfast.lifecycle.states import (
    OWNED,
    CancelMode,
    EventType,
    Kind,
    Role,
    State,
)
from holdfast.lifecycle.times import SECOND
from tests.lifecycle.factories import (
    CONTROL,
    HOST,
    ONCE,
    RECONCILER,
    SCHEDULER,
    TERMS,
    WORKER,
    Life,
    asked_to_cancel,
    dead_letter,
    life_in,
    owner,
    refused,
)
from tests.lifecycle.histories import BIRTH

Wish = Callable[[Life], c.Command]


OWNED_STATES = sorted(OWNED)


def test_only_a_job_that_was_never_claimed_can_be_denied() -> None:
    life = life_in(State.STALLED)
    life.do(c.Requeue(actor=CONTROL))

    assert refused(life, c.Deny(actor=SCHEDULER, rule="no")) == "already_claimed"


def test_a_denial_that_lost_to_a_claim_becomes_a_request_to_cancel() -> None:
    life = life_in(State.CLAIMED)

    assert refused(life, c.Deny(actor=SCHEDULER, rule="no")) == "illegal_transition"
    life.do(c.RequestCancel(actor=SCHEDULER, reason="denied by rule no"))


def test_a_held_job_is_not_claimed_until_its_last_hold_is_lifted() -> None:
    life = Life(holds=("upload",))
    life.do(c.Hold(actor=CONTROL, hold="limit"))
    life.do(c.Unhold(actor=CONTROL, hold="upload"))
    assert refused(life, c.Claim(actor=WORKER)) == "held"

    life.do(c.Unhold(actor=CONTROL, hold="limit"))

    life.claim()


def test_a_hold_that_stands_and_one_that_does_not_are_repeats() -> None:
    life = Life(holds=("upload",))

    life.repeat(c.Hold(actor=CONTROL, hold="upload"))
    life.repeat(c.Unhold(actor=CONTROL, hold="limit"))


@pytest.mark.req("A13")
@pytest.mark.parametrize("hold", ["approval:prod/1/0", "policy", "denied:prod", "approval:x"])
def test_a_person_neither_places_nor_lifts_what_only_the_gates_of_policies_lift(hold: str) -> None:
    life = life_in(State.PENDING)
    assert refused(life, c.Hold(actor=CONTROL, hold=hold)) == "reserved_hold"

    life.do(c.Hold(actor=SCHEDULER, hold=hold))

    assert refused(life, c.Unhold(actor=CONTROL, hold=hold)) == "reserved_hold"
    assert refused(life, c.Admit(actor=SCHEDULER)) == "held"


@pytest.mark.req("A13")
def test_a_person_lifts_the_hold_of_a_rule_and_only_then_the_job_is_admitted() -> None:
    life = life_in(State.PENDING)
    life.do(c.Hold(actor=SCHEDULER, hold="policy-hold:prod"))
    assert refused(life, c.Admit(actor=SCHEDULER)) == "held"

    life.do(c.Unhold(actor=CONTROL, hold="policy-hold:prod"))

    life.do(c.Admit(actor=SCHEDULER))


@pytest.mark.req("A13")
@pytest.mark.parametrize("hold", ["approval:prod/1/0", "denied:prod"])
def test_no_admission_lifts_an_approval_or_a_denial(hold: str) -> None:
    life = life_in(State.PENDING)
    life.do(c.Hold(actor=SCHEDULER, hold=hold))

    assert refused(life, c.Admit(actor=SCHEDULER, lifts=hold)) == "reserved_hold"
    assert refused(life, c.Unhold(actor=SCHEDULER, hold=hold)) == "reserved_hold"


@pytest.mark.req("A13")
def test_a_decision_swaps_the_hold_that_awaited_it_for_those_that_it_places() -> None:
    life = life_in(State.PENDING)
    life.do(c.Hold(actor=SCHEDULER, hold="policy"))

    two = ("approval:prod/2/0", "approval:prod/1/0")
    life.do(c.Hold(actor=SCHEDULER, hold=two[0], holds=two[1:], lifts="policy", rules="d"))

    assert life.record.held_by == tuple(sorted(two))
    assert refused(life, c.Admit(actor=SCHEDULER)) == "held"


@pytest.mark.req("A13")
def test_each_approval_lifts_one_hold_and_the_last_one_lets_the_job_be_admitted() -> None:
    life = life_in(State.PENDING)
    two = ("approval:prod/2/0", "approval:prod/1/0")
    life.do(c.Hold(actor=SCHEDULER, hold=two[0], holds=two[1:]))

    life.do(c.Approve(actor=CONTROL, hold=two[0]))
    assert refused(life, c.Approve(actor=CONTROL, hold=two[0])) == "no_approval_awaited"
    assert refused(life, c.Admit(actor=SCHEDULER)) == "held"
    life.do(c.Approve(actor=CONTROL, hold=two[1], approved="ab"))

    assert life.events[-1].facts.approved == "ab"
    life.do(c.Admit(actor=SCHEDULER))
    assert life.record.claimable


@pytest.mark.req("A13")
def test_an_approval_after_its_time_is_refused() -> None:
    life = life_in(State.PENDING)
    life.do(c.Hold(actor=SCHEDULER, hold="approval:prod/1/60"))
    late = BIRTH + 60 * SECOND

    approval = c.Approve(actor=CONTROL, hold="approval:prod/1/60", as_of=late)
    assert refused(life, approval) == "approval_expired"

    life.do(replace(approval, as_of=late - 1))


@pytest.mark.req("A13")
def test_a_person_denies_only_what_awaits_an_approval() -> None:
    life = life_in(State.PENDING)
    denial = c.Deny(actor=CONTROL, rule="prod", error_code=c.DENIED_BY_PERSON)
    assert refused(life, denial) == "no_approval_awaited"

    life.do(c.Hold(actor=SCHEDULER, hold="approval:prod/1/60"))
    life.do(denial)

    assert (life.record.state, life.record.error_code) == (State.DENIED, "denied_by_person")


@pytest.mark.req("A13")
def test_a_gate_does_not_hold_what_was_admitted() -> None:
    life = life_in(State.QUEUED)

    assert refused(life, c.Hold(actor=SCHEDULER, hold="policy")) == "admitted"


def test_claim_and_heartbeat_while_claimed_grant_the_lease_start_grants_two_intervals() -> None:
    policy = Policy(lease=60 * SECOND, heartbeat=15 * SECOND)
    life = life_in(State.CLAIMED, policy=policy)
    assert life.record.lease_expires_at == life.now + 60 * SECOND
    life.do(c.Heartbeat(actor=life.owner))
    assert life.record.lease_expires_at == life.now + 60 * SECOND

    life.start()

    assert life.record.lease_expires_at == life.now + 30 * SECOND
    life.do(c.Heartbeat(actor=life.owner, by_handler=True))
    assert life.record.lease_expires_at == life.now + 30 * SECOND


@pytest.mark.parametrize(
    "wish",
    [
        lambda life: c.Step(actor=life.owner, name="charge"),
        lambda life: c.Progress(actor=life.owner, body=b"1"),
        lambda life: c.SignalJob(actor=CONTROL, name="go"),
        lambda life: c.RequestCancel(actor=CONTROL),
    ],
)
def test_what_is_no_heartbeat_leaves_the_lease_as_it_is(wish: Wish) -> None:
    life = life_in(State.RUNNING)
    lease = life.record.lease_expires_at

    life.do(wish(life))

    assert life.record.lease_expires_at == lease
    assert life.events[-1].lease_expires_at == lease


LAPSE: list[Any] = [
    pytest.param(lambda t: c.Stall(actor=RECONCILER, as_of=t), id="stall"),
    pytest.param(lambda t: c.Lose(actor=RECONCILER, as_of=t, error_code="lost"), id="lose"),
    pytest.param(lambda t: dead_letter(RECONCILER, as_of=t), id="dead_letter"),
    pytest.param(lambda t: c.Cancel(actor=RECONCILER, as_of=t), id="cancel"),
]


@pytest.mark.req("B6", "B9")
@pytest.mark.parametrize("state", OWNED_STATES)
@pytest.mark.parametrize("sweep", LAPSE)
def test_a_sweep_takes_a_job_from_the_very_moment_its_lease_ends_and_not_before(
    sweep: Callable[[int], c.Command], state: State
) -> None:
    life = life_in(state)
    if isinstance(sweep(0), c.Cancel):
        asked_to_cancel(life)
    lease = life.record.lease_expires_at
    assert lease is not None
    assert refused(life, sweep(lease - 1)) == "lease_live"

    life.do(sweep(lease))

    assert life.record.owner is None


@pytest.mark.parametrize("state", OWNED_STATES)
def test_a_claim_of_an_older_epoch_is_taken_back_while_its_lease_is_live(state: State) -> None:
    life = life_in(state)
    assert refused(life, c.Stall(actor=RECONCILER, as_of=life.now)) == "lease_live"

    life.do(c.Stall(actor=RECONCILER, as_of=life.now, epoch=2))

    assert life.record.state is State.STALLED


@pytest.mark.parametrize(
    ("sweep", "on_silence"),
    [
        (dead_letter(RECONCILER), "stall"),
        (c.Lose(actor=RECONCILER, as_of=0, error_code="gone"), "lose"),
        (c.TimeOut(actor=RECONCILER), "time_out"),
    ],
    ids=["dead_letter", "lose", "time_out"],
)
@pytest.mark.parametrize("state", OWNED_STATES)
def test_a_claim_of_an_older_epoch_is_ended_while_its_lease_is_live(
    state: State, sweep: c.DeadLetter | c.Lose | c.TimeOut, on_silence: str
) -> None:
    life = life_in(state, policy=Policy(on_silence=on_silence))
    assert refused(life, replace(sweep, as_of=life.now)) in ("lease_live", "not_due")

    life.do(replace(sweep, as_of=life.now, epoch=2))

    assert life.record.terminal


def test_an_epoch_does_not_end_a_job_that_nobody_holds() -> None:
    life = life_in(State.QUEUED, policy=Policy(on_silence="time_out"))

    assert refused(life, c.TimeOut(actor=RECONCILER, as_of=life.now, epoch=2)) == "not_due"


def test_a_dead_letter_needs_a_known_reason_and_stage() -> None:
    life = life_in(State.RUNNING)

    assert refused(life, dead_letter(life.owner, error_code="because")) == "bad_reason"
    assert refused(life, dead_letter(life.owner, stage="later")) == "bad_reason"


PARKED = [State.PENDING, State.QUEUED, State.WAITING, State.RETRYING, State.STALLED]


def test_a_sweep_times_out_what_is_past_its_deadline_with_or_without_an_owner() -> None:
    for state in [*PARKED, *OWNED_STATES]:
        life = life_in(state, policy=Policy(), deadline_at=BIRTH + 100 * SECOND)
        early = c.TimeOut(actor=RECONCILER, as_of=BIRTH + 100 * SECOND - 1)
        assert refused(life, early) == "not_due"

        life.do(c.TimeOut(actor=RECONCILER, as_of=BIRTH + 100 * SECOND))

        assert (life.record.state, life.record.error_code) == (State.TIMED_OUT, "timeout")
        assert life.record.failures == (state in OWNED_STATES) + (state is State.RETRYING)


def test_a_job_not_started_in_time_is_taken_back_though_its_lease_is_live() -> None:
    life = life_in(State.CLAIMED, policy=replace(TERMS, start_timeout=5 * SECOND))
    due = life.now + 5 * SECOND
    assert life.record.timeout_at == due
    assert refused(life, c.Stall(actor=RECONCILER, as_of=due - 1)) == "lease_live"

    life.do(c.Stall(actor=RECONCILER, as_of=due))

    assert life.record.state is State.STALLED


def test_the_timeout_of_an_attempt_counts_from_its_start_and_survives_adoption() -> None:
    life = life_in(State.RUNNING, policy=replace(TERMS, timeout=77 * SECOND))
    due = life.now + 77 * SECOND
    life.do(c.Adopt(actor=HOST))

    assert life.record.timeout_at == due
    assert refused(life, c.TimeOut(actor=RECONCILER, as_of=due - 1)) == "not_due"
    life.do(c.TimeOut(actor=RECONCILER, as_of=due))


def test_silence_times_out_where_the_policy_says_so() -> None:
    life = life_in(State.RUNNING, policy=replace(ONCE, on_silence="time_out"))

    life.do(c.TimeOut(actor=RECONCILER, as_of=life.lapsed))


@pytest.mark.req("D4")
@pytest.mark.parametrize("kind", [Kind.COMMAND, Kind.AGENT])
@pytest.mark.parametrize("code", [None, 1, 137, -1, 255])
def test_what_runs_in_a_box_cannot_succeed_without_the_exit_code_0(
    kind: Kind, code: int | None
) -> None:
    life = life_in(State.RUNNING, policy=ONCE, kind=kind)

    assert refused(life, c.Complete(actor=life.owner, exit_code=code)) == "no_exit_code"
    life.do(c.Complete(actor=life.owner, exit_code=0))

    assert (life.record.state, life.record.exit_code) == (State.SUCCEEDED, 0)


@pytest.mark.parametrize("kind", [Kind.FUNCTION, Kind.BUS])
def test_what_runs_in_no_box_succeeds_without_an_exit_code(kind: Kind) -> None:
    life = life_in(State.RUNNING, kind=kind)

    life.do(c.Complete(actor=life.owner))


@pytest.mark.req("D4")
def test_a_success_that_is_refused_for_its_exit_code_names_the_code() -> None:
    life = life_in(State.RUNNING, policy=ONCE, kind=Kind.COMMAND)

    for code, words in ((None, "no observed exit code 0"), (3, "the exit code 3 and no observed")):
        decision = life.ask(c.Complete(actor=life.owner, exit_code=code))
        assert isinstance(decision, Refusal)
        assert words in decision.message


def test_an_owner_cannot_time_out_a_job_without_any_limit() -> None:
    life = life_in(State.RUNNING, policy=Policy())

    assert refused(life, c.TimeOut(actor=life.owner)) == "no_time_limit"


def test_adoption_keeps_the_attempt_and_fences_the_old_owner() -> None:
    life = life_in(State.RUNNING)
    old, started_at = life.owner, life.record.started_at
    life.do(c.Adopt(actor=HOST))

    assert (life.record.owner, life.record.attempt) == ("w2", 1)
    assert life.record.started_at == started_at
    assert life.record.lease_expires_at == life.now + 30 * SECOND
    assert refused(life, c.Heartbeat(actor=old)) == "lease_lost"
    life.repeat(c.Adopt(actor=HOST))


@pytest.mark.parametrize("state", OWNED_STATES)
@pytest.mark.parametrize("role", [Role.HOST, Role.BUS])
def test_what_one_holds_is_adopted_anew_once_its_lease_has_passed_and_not_before(
    role: Role, state: State
) -> None:
    life = life_in(state, policy=replace(TERMS, timeout=None))
    mine, lease = Actor(role, "w1"), life.record.lease_expires_at
    assert lease is not None
    life.repeat(c.Adopt(actor=mine))
    life.repeat(c.Adopt(actor=mine, as_of=lease - 1))

    life.do(c.Adopt(actor=mine, as_of=lease))

    assert (life.record.state, life.record.owner, life.record.attempt) == (State.RUNNING, "w1", 1)
    assert life.record.lease_expires_at == life.now + TERMS.running_lease
    life.do(c.Complete(actor=owner(1, "w1")))


def test_what_one_holds_is_adopted_anew_after_the_epoch_was_raised() -> None:
    life = life_in(State.RUNNING)
    bus = Actor(Role.BUS, "w1")
    life.repeat(c.Adopt(actor=bus))

    life.do(c.Adopt(actor=bus, epoch=2))

    assert (life.record.owner, life.record.epoch) == ("w1", 2)


def test_a_bus_does_not_adopt_what_another_holds() -> None:
    life = life_in(State.RUNNING)
    bus = Actor(Role.BUS, "bus:main")

    assert refused(life, c.Adopt(actor=bus, as_of=life.lapsed)) == "not_owner"


@pytest.mark.req("D14")
@pytest.mark.parametrize("state", OWNED_STATES)
@pytest.mark.parametrize(("gone", "kill"), [(True, "confirmed"), (False, "unconfirmed")])
def test_a_host_loses_a_job_while_the_lease_of_its_dead_owner_lives(
    state: State, gone: bool, kill: str
) -> None:
    life = life_in(state, policy=ONCE)
    life.do(c.Lose(actor=HOST, error_code="container_lost_on_recovery", gone=gone))

    job, facts = life.record, life.events[-1].facts
    assert (job.state, job.error_code) == (State.FAILED, "container_lost_on_recovery")
    assert (facts.kill, facts.last_owner, life.events[-1].actor) == (kill, "w1", "w2")
    assert job.lost_owner == (None if gone else "w1")


@pytest.mark.req("D14")
@pytest.mark.parametrize(("gone", "kill"), [(True, "confirmed"), (False, "unconfirmed")])
def test_a_loss_by_the_host_after_a_cancel_request_is_a_cancel(gone: bool, kill: str) -> None:
    life = asked_to_cancel(life_in(State.RUNNING, policy=ONCE))
    life.do(c.Lose(actor=HOST, error_code="container_lost_on_recovery", gone=gone))

    assert (life.record.state, life.record.error_code) == (State.CANCELLED, "cancelled")
    assert life.events[-1].facts.kill == kill


def test_a_host_does_not_lose_what_waits_for_its_next_claim() -> None:
    life = life_in(State.STALLED)

    assert refused(life, c.Lose(actor=HOST, error_code="gone")) == "illegal_transition"


def test_a_sweep_cannot_say_that_a_run_is_gone() -> None:
    life = life_in(State.RUNNING, policy=ONCE)
    life.do(c.Lose(actor=RECONCILER, as_of=life.lapsed, error_code="lost", gone=True))

    assert life.events[-1].facts.kill == "unconfirmed"


@pytest.mark.req("D8")
def test_an_adopted_job_stays_asked_to_cancel_and_its_new_owner_cancels_it() -> None:
    life = asked_to_cancel(life_in(State.RUNNING, policy=ONCE, kind=Kind.COMMAND))
    life.do(c.Adopt(actor=HOST))
    assert life.record.cancel_requested is CancelMode.SOFT

    life.do(c.Cancel(actor=life.owner, exit_code=0))

    assert (life.record.state, life.record.exit_code) == (State.CANCELLED, 0)
    assert life.events[-1].facts.kill == "confirmed"


@pytest.mark.req("D4", "D6", "D7")
@pytest.mark.parametrize(
    ("end", "state"),
    [
        (lambda o: c.Fail(actor=o, error_code="exit_code", exit_code=3), State.FAILED),
        (lambda o: c.Cancel(actor=o, exit_code=143), State.CANCELLED),
        (lambda o: c.TimeOut(actor=o, exit_code=137), State.TIMED_OUT),
        (lambda o: c.Complete(actor=o, exit_code=0), State.SUCCEEDED),
    ],
)
def test_every_end_by_an_owner_keeps_the_exit_code(
    end: Callable[[Actor], c.Command], state: State
) -> None:
    life = life_in(State.RUNNING, policy=replace(ONCE, timeout=SECOND), kind=Kind.COMMAND)
    command = end(life.owner)
    if isinstance(command, c.Cancel):
        asked_to_cancel(life)
    life.do(command)

    assert life.record.state is state
    assert life.record.exit_code == life.events[-1].facts.exit_code is not None


def test_an_owners_change_is_fenced_and_nobody_elses_is() -> None:
    running = life_in(State.RUNNING)
    assert running.do(c.Heartbeat(actor=running.owner)).fenced
    assert not running.do(c.RequestCancel(actor=CONTROL)).fenced
    assert not running.do(c.Adopt(actor=HOST)).fenced
    assert not running.do(c.Lose(actor=HOST, error_code="gone")).fenced


@pytest.mark.req("B25", "C9", "B18")
def test_each_event_tells_who_when_why_and_by_which_request() -> None:
    life = life_in(State.RUNNING)
    change = life.do(
        c.Complete(actor=life.owner, body=b'{"n":1}', request_id="r-9", reason="done", exit_code=0)
    )
    assert isinstance(change, Change)

    event = life.events[-1]
    assert (event.id, event.rev, event.type) == (life.record.id, 4, EventType.SUCCEEDED)
    assert (event.from_state, event.to_state) == (State.RUNNING, State.SUCCEEDED)
    assert (event.at, event.actor, event.request_id) == (life.now, "w1", "r-9")
    assert (event.reason, event.attempt, event.body) == ("done", 1, b'{"n":1}')
    assert (event.version, life.record.version) == (1, 1)
    assert life.record.result_digest == event.digest
