"""No interleaving of all who act on one job breaks a promise; without any one guard, one does."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import pytest
from msgspec.structs import replace

from holdfast.lifecycle import commands as c
from holdfast.lifecycle import decide as deciding
from holdfast.lifecycle import rebase as rebasing
from holdfast.lifecycle import transitions
from holdfast.lifecycle.decide import attempt
from holdfast.lifecycle.record import Actor, Draft
from holdfast.lifecycle.states import TERMINAL, Operation, Role, State
from tests.lifecycle.search import Findings, essence, explore, seen_of
from tests.lifecycle.world import GUARDS, Model, Parcel, Size, World, find_request

EVERYBODY = Size(depth=100, claims=1, beats=0, sweeps=2, ticks=1)
LEASES = EVERYBODY._replace(claims=2, beats=1, cancels=0, signals=0, ticks=2, lost_replies=0)
DEADLINE = EVERYBODY._replace(signals=0, deadline_ticks=1)
"""Small enough to be explored to the very end: nothing at all can happen beyond it."""

TRIED = {
    "w1 claims, reply lost",
    "w1 claims again",
    "w2 claims",
    "w1 complete (accepted), reply lost",
    "w1 complete (stale)",
    "w1 complete (lease_lost)",
    "w2 wait (stale)",
    "w2 step (accepted)",
    "sweep stall (stale)",
    "sweep dead_letter (accepted)",
    "sweep resume (stale)",
    "ann cancel (accepted), reply lost",
    "ann request_cancel (accepted)",
    "w1 cancel (accepted)",
    "bob signal (repeated)",
}
"""Some of what makes the search worth running, and must not fall out of it unnoticed."""


def report(findings: Findings) -> Findings:
    print(f"\n{findings}")
    return findings


@pytest.mark.req("A14", "B2", "B3", "B4", "B5", "B6", "C3", "C4", "C5", "C6", "C8", "C13", "E1")
def test_no_interleaving_of_all_actors_breaks_a_promise() -> None:
    findings = report(explore(EVERYBODY))

    assert findings.trace == ()
    assert findings.complete
    assert findings.states > 25_000
    assert findings.kinds >= TRIED


@pytest.mark.req("A14", "B2", "B3", "B6", "C3", "C13")
@pytest.mark.parametrize(
    ("size", "tried"),
    [(LEASES, "w2 heartbeat (stale)"), (DEADLINE, "sweep time_out (stale)")],
    ids=["leases", "deadline"],
)
def test_no_interleaving_around_a_time_limit_breaks_a_promise(size: Size, tried: str) -> None:
    findings = report(explore(size))

    assert findings.trace == ()
    assert findings.complete
    assert findings.states > 5_000
    assert tried in findings.kinds


HOST = EVERYBODY._replace(signals=0, takeovers=1, sweeps=1)
BUS = EVERYBODY._replace(claims=2, cancels=0, signals=0, ticks=2, retakes=2)


@pytest.mark.req("D14", "D16")
def test_no_interleaving_with_a_host_that_takes_over_breaks_a_promise() -> None:
    findings = report(explore(HOST))

    assert findings.trace == ()
    assert findings.complete
    assert findings.kinds >= {
        "w2 adopt (accepted)",
        "w2 adopt (accepted), reply lost",
        "w2 adopt (stale)",
        "w2 lose (accepted)",
        "w2 lose (stale)",
        "w1 complete (stale)",
        "w2 complete (accepted)",
        "sweep stall (stale)",
    }


def test_no_interleaving_with_a_bus_that_takes_its_job_back_breaks_a_promise() -> None:
    findings = report(explore(BUS))

    assert findings.trace == ()
    assert findings.complete
    assert findings.kinds >= {"w1 adopt (accepted)", "w1 adopt (stale)", "w2 adopt (accepted)"}


TINY = EVERYBODY._replace(sweeps=1, signals=0)


def reachable(name: Callable[[World], Hashable]) -> set[Hashable]:
    """All that can become of the job, if worlds of the same name are explored once."""
    model = Model(TINY)
    frontier = [model.beginning()]
    named = {name(frontier[0])}
    found: set[Hashable] = set()
    while frontier:
        world = frontier.pop()
        found.add((seen_of(world.job, world.now), world.ticks, world.lost_replies))
        for _, after in model.steps(world):
            if (given := name(after)) not in named:
                named.add(given)
                frontier.append(after)
    return found


def in_full(world: World) -> Hashable:
    """Name a world by all it holds, but for revisions counted from now and names of requests."""
    rev = world.job.rev
    return (
        seen_of(world.job, world.now),
        world.ticks,
        world.lost_replies,
        *(
            (
                party.left,
                party.known and (rev - party.known.rev, seen_of(party.known, world.now)),
                party.parcel and (parcel_in(world, party.parcel)),
            )
            for party in (world.w1, world.w2, world.sweep, world.ann, world.bob)
        ),
    )


def parcel_in(world: World, parcel: Parcel) -> Hashable:
    return (
        parcel.command.operation,
        parcel.command.actor,
        getattr(parcel.command, "as_of", None),
        find_request(world, parcel.command) is not None,
        tuple((world.job.rev - change.record.rev, change.event.type) for change in parcel.changes),
    )


def test_taking_like_worlds_for_one_loses_nothing_that_can_become_of_a_job() -> None:
    assert reachable(essence) == reachable(in_full)


Switch = Callable[[pytest.MonkeyPatch], frozenset[str]]


def no_rev_check(patch: pytest.MonkeyPatch) -> frozenset[str]:
    return GUARDS - {"rev"}


def no_lease_check(patch: pytest.MonkeyPatch) -> frozenset[str]:
    return GUARDS - {"lease"}


def no_request_index(patch: pytest.MonkeyPatch) -> frozenset[str]:
    return GUARDS - {"request"}


def no_owner_check(patch: pytest.MonkeyPatch) -> frozenset[str]:
    """Let a lost race be decided anew for whoever asks: rebase's check, and the one behind it."""
    patch.setattr(rebasing, "still_mine", lambda current, command: True)
    patch.setattr(deciding, "is_owner", lambda record, actor: True)
    return GUARDS


def no_terminal_freeze(patch: pytest.MonkeyPatch) -> frozenset[str]:
    """Let an ended job be written as if it still ran, by the law and by the store."""
    real = transitions.find_row

    def find_row(operation: Operation, state: State, role: Role) -> transitions.Row | None:
        if state not in TERMINAL:
            return real(operation, state, role)
        return real(operation, State.RUNNING, role) or real(operation, State.QUEUED, role)

    patch.setattr(deciding, "find_row", find_row)
    return GUARDS - {"freeze"}


def no_sticky_cancel(patch: pytest.MonkeyPatch) -> frozenset[str]:
    patch.setattr(deciding, "may_turn", lambda command: False)
    return GUARDS


def no_memory_of_what_landed(patch: pytest.MonkeyPatch) -> frozenset[str]:
    patch.setattr(rebasing, "has_landed", lambda change, event: False)
    return GUARDS


def no_name_check_of_a_bus(patch: pytest.MonkeyPatch) -> frozenset[str]:
    """Let a bus adopt whatever is held, as a host may."""
    real = attempt.adopt

    def adopt(record: Draft, row: transitions.Row, command: c.Adopt) -> deciding.Decision:
        actor = Actor(Role.HOST, command.actor.name, command.actor.attempt)
        return real(record, row, replace(command, actor=actor))

    patch.setitem(deciding._RULES, Operation.ADOPT, adopt)
    return GUARDS


@pytest.mark.parametrize(
    ("switch_off", "size", "promise"),
    [
        (no_rev_check, EVERYBODY._replace(lost_replies=0), "leaves queued, not claimed"),
        (no_lease_check, EVERYBODY, "wrote after its lease had passed"),
        (no_owner_check, EVERYBODY, "w1 wrote into attempt 2, held by w2"),
        (no_terminal_freeze, DEADLINE._replace(sweeps=1), "the outcome timed_out was changed"),
        (no_sticky_cancel, EVERYBODY, "became retrying after its cancel was requested"),
        (no_request_index, EVERYBODY, "request bob-1 made two events"),
        (no_name_check_of_a_bus, BUS, "bus w1 took the job from w2"),
        (no_memory_of_what_landed, LEASES._replace(lost_replies=1), "made two events"),
    ],
)
def test_without_a_guard_a_promise_breaks(
    switch_off: Switch, size: Size, promise: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = report(explore(size, switch_off(monkeypatch)))

    assert findings.trace != ()
    assert promise in findings.trace[-1]
