"""Verify on a damaged log: what bears on a job's state is caught, and with seals every byte is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import product
from typing import Any

import pytest

from holdfast.lifecycle import seal
from holdfast.lifecycle.record import NO_FACTS, LoggedEvent
from holdfast.lifecycle.states import BEATS, HOLDABLE, OWNED, TERMINAL, EventType, KeyKind, State
from holdfast.ports.store import Store
from holdfast.stores.columns import EVENT_COLUMNS
from holdfast.testing.store_actions import all_jobs
from tests.stores.damage import Turn, Vandal, another, vandal
from tests.stores.ledgers import Ledger, make_ledger, problems_of
from tests.stores.raw import ENGINES
from tests.stores.samples import populate

Log = list[LoggedEvent]
Rows = dict[tuple[Any, int], dict[str, Any]]


async def _populate(ledger: Ledger, *, sealing: bool) -> None:
    async with ledger.store() as store:
        await store.set_sealing(sealing)
        await populate(store)


@pytest.fixture(scope="module", params=ENGINES)
def ledger(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    made = make_ledger(request, tmp_path_factory)
    asyncio.run(_populate(made, sealing=False))
    return made


@pytest.fixture(scope="module", params=ENGINES)
def sealed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    made = make_ledger(request, tmp_path_factory)
    asyncio.run(_populate(made, sealing=True))
    return made


@pytest.fixture(autouse=True)
def young(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sealing was turned on a moment ago; let that moment count."""
    monkeypatch.setattr(seal, "SWITCH_SPAN", 0)


class Bench:
    """A store, what is in it, and the hand that damages it."""

    def __init__(self, store: Store, hand: Vandal, logs: dict[Any, Log], rows: Rows) -> None:
        self.store = store
        self.hand = hand
        self.logs = logs
        self.rows = rows

    async def missed(self, table: str, turns: list[Turn]) -> list[str]:
        """Turn cells, at most one per job at a time; tell whose damage nobody noticed."""
        missed = []
        for round_ in _rounds(turns):
            async with self.hand.turned(table, round_):
                found = {problem.id for problem in await problems_of(self.store)}
            missed += [
                f"{turn.column} of {self.rows[turn.id, turn.rev or 0]['type']} at rev {turn.rev}"
                for turn in round_
                # A heartbeat may be dropped; under another id it is a stranger there.
                if not {turn.id, turn.value if turn.column == "id" else turn.id} & found
            ]
        return missed


def _rounds(turns: list[Turn]) -> Iterator[list[Turn]]:
    left = turns
    while left:
        first = {turn.id: turn for turn in reversed(left)}
        yield list(first.values())
        left = [turn for turn in left if first[turn.id] is not turn]


async def _bench(ledger: Ledger) -> AsyncIterator[Bench]:
    async with ledger.store() as store, vandal(ledger) as hand:
        jobs = await all_jobs(store)
        logs = {job.id: await store.events(job.id) for job in jobs}
        rows: Rows = {}
        for job in jobs:
            for table in ("events", "beats"):
                for row in await hand.rows(f"SELECT * FROM {table} WHERE id = $1", job.id):
                    rows[job.id, row["rev"]] = row
        yield Bench(store, hand, logs, rows)
        assert await problems_of(store) == []


@pytest.fixture
async def bench(ledger: Ledger) -> AsyncIterator[Bench]:
    async for made in _bench(ledger):
        yield made


@pytest.fixture
async def sealed_bench(sealed: Ledger) -> AsyncIterator[Bench]:
    async for made in _bench(sealed):
        yield made


# Which events of a log bear on the job's state by each column.


def every(log: Log) -> Log:
    return [event for event in log if event.type not in BEATS]


def first(log: Log) -> Log:
    return log[:1]


def first_and_last(log: Log) -> Log:
    return [event for event in (log[0], log[-1]) if event.type not in BEATS]


def last_run_at(log: Log) -> Log:
    # A wait without a timer takes the time away.
    return [e for e in log if e.run_at is not None or e.type is EventType.WAITING][-1:]


def present_lease(log: Log) -> Log:
    held = [event for event in log if event.to_state in OWNED and event.lease_expires_at]
    return held[-1:] if log[-1].to_state in OWNED and held[-1].type not in BEATS else []


def present_ownership(log: Log) -> Log:
    taken = [e for e in log if e.type in (EventType.CLAIMED, EventType.ADOPTED)]
    return taken[-1:] if log[-1].to_state in OWNED else []


def keyed(log: Log) -> Log:
    made = log[0].created
    return log[:1] if made is not None and made.key_kinds & KeyKind.REQUEST_ID.code else []


def with_data(log: Log) -> Log:
    return [event for event in every(log) if event.created or event.facts != NO_FACTS]


def with_body(log: Log) -> Log:
    return [event for event in every(log) if event.body is not None]


STATE_BEARING: dict[str, Callable[[Log], Log]] = {
    "id": every,
    "rev": every,
    "type": every,
    "from_state": every,
    "to_state": every,
    "at": first_and_last,
    "attempt": every,
    "beats": every,
    "lease_expires_at": present_lease,
    "run_at": last_run_at,
    "deadline_at": first,
    "actor": present_ownership,
    "request_id": keyed,
    "data": with_data,
    "body": with_body,
    "digest": with_body,
}
INVISIBLE = {
    "version": "says how to read an event, not what happened",
    "reason": "is for people",
    "correlation_id": "is for whoever follows a request",
    "seal": "is not there without sealing",
}
"""Columns that no projection shows. So are, of the others, events that later ones overrule: the
time of one in the middle, an earlier lease or owner, a request_id that is no key; and a type that
shares its edge with another."""


def turn_of(column: str, event: LoggedEvent, rows: Rows) -> Turn:
    value = another(column, rows[event.id, event.rev][column])
    if column == "type":
        # One that does not have this edge.
        value = EventType.CLAIMED.code if event.rev == 1 else EventType.CREATED.code
    if column == "rev":
        value = event.rev + 1000
    return Turn(event.id, event.rev, column, value)


@pytest.mark.req("E1", "E2", "E8")
async def test_each_state_bearing_column_of_an_event_is_caught(bench: Bench) -> None:
    assert {*STATE_BEARING, *INVISIBLE} == set(EVENT_COLUMNS)
    missed = []
    for column, bears in STATE_BEARING.items():
        events = [event for log in bench.logs.values() for event in bears(log)]
        assert events, column
        missed += await bench.missed("events", [turn_of(column, e, bench.rows) for e in events])
    assert missed == []


async def test_a_word_of_nobodys_law_is_caught_in_an_event(bench: Bench) -> None:
    events = [event for log in bench.logs.values() for event in every(log)]
    missed = []
    for column, code in product(("type", "from_state", "to_state"), (98, 99)):
        missed += await bench.missed("events", [Turn(e.id, e.rev, column, code) for e in events])
    assert missed == []


PROJECTED = {
    "epoch", "failures", "releases", "held", "unheld", "cancel", "wait_for", "signal", "consumed",
    "error_code", "exit_code", "result_ptr", "letter", "retention", "late", "tenant", "job_id",
    "kind", "task", "queue", "priority", "needs", "policy", "cpus", "memory_mb", "parent_id",
    "link_kind", "workflow_id", "step_index", "key_kinds", "client_job_id", "dedupe_key", "content",
}  # fmt: skip
"""Facts that a row or a key shows; the others are told by their event alone."""
OTHER_WORD = {"soft": "hard", "hard": "soft", "open": "discarded", "redriven": "open",
              "discarded": "open", "cleaning": "cleaned", "cleaned": "cleaning"}  # fmt: skip


def _facts(row: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Each fact of an event, and the data with that fact changed."""
    facts = json.loads(row["data"] or "{}")
    for name, value in facts.items():
        other = value + 1 if isinstance(value, int) else OTHER_WORD.get(str(value), f"{value}x")
        yield name, json.dumps(facts | {name: other})


@pytest.mark.req("E1")
async def test_each_fact_that_a_row_shows_is_caught(bench: Bench) -> None:
    turns, seen = [], set()
    for (id_, rev), row in bench.rows.items():
        overruled = _overruled(bench.logs[id_], rev)
        for name, changed in _facts(row) if "data" in row else ():
            if name in PROJECTED and name not in overruled:
                turns.append(Turn(id_, rev, "data", changed))
                seen.add(name)
    assert seen == PROJECTED - {"epoch"}
    assert await bench.missed("events", turns) == []


def _overruled(log: Log, rev: int) -> set[str]:
    """Facts of an event that no row shows any more, or never did."""
    later = [event for event in log if event.rev > rev]
    names = {name for event in later for name in REPLACED if getattr(event.facts, name) is not None}
    this = next(event for event in log if event.rev == rev)
    if this.to_state not in TERMINAL or this.from_state in TERMINAL:
        names |= {"error_code", "exit_code", "result_ptr"}
    if any(event.facts.unheld or event.to_state not in HOLDABLE for event in later):
        names.add("held")
    if any(event.from_state is State.WAITING for event in later):
        names.add("wait_for")
    if any(event.facts.consumed == rev for event in later):
        names.add("signal")
    if any(event.type is EventType.CLEANED for event in later):
        names |= {"client_job_id", "dedupe_key"}
    return names


REPLACED = ("failures", "releases", "letter", "retention", "cancel")


async def test_a_missing_event_is_caught(bench: Bench) -> None:
    for job_id, log in list(bench.logs.items())[::3]:
        for event in every(log):
            row = bench.rows[job_id, event.rev]
            await bench.hand.rows(
                "DELETE FROM events WHERE id = $1 AND rev = $2", job_id, event.rev
            )
            found = {problem.id for problem in await problems_of(bench.store)}
            await _insert(bench.hand, "events", row)
            assert job_id in found, f"{event.type} at rev {event.rev} of {len(log)}"


async def _insert(hand: Vandal, table: str, row: dict[str, Any]) -> None:
    marks = ", ".join(f"${i}" for i in range(1, len(row) + 1))
    await hand.rows(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", *row.values())


@pytest.mark.req("E1")
async def test_with_seals_every_column_of_every_event_is_caught(sealed_bench: Bench) -> None:
    bench = sealed_bench
    events = [event for log in bench.logs.values() for event in every(log)]
    missed = []
    for column in EVENT_COLUMNS:
        changed = [
            turn_of(column, event, bench.rows)
            for event in events
            # A body that is not there was never written: there is no digest to seal.
            if column != "body" or event.body is not None
        ]
        missed += await bench.missed("events", changed)
    assert missed == []


@pytest.mark.req("E1")
async def test_with_seals_every_column_of_every_heartbeat_is_caught(sealed_bench: Bench) -> None:
    bench = sealed_bench
    beats = [event for log in bench.logs.values() for event in log if event.type in BEATS]
    columns = bench.rows[beats[0].id, beats[0].rev]
    assert len(beats) > 2
    missed = []
    for column in columns:
        turns = [turn_of(column, beat, bench.rows) for beat in beats]
        if column in ("type", "state"):
            turns = [
                Turn(beat.id, beat.rev, column, _other_of_two(bench, beat, column))
                for beat in beats
            ]
        missed += await bench.missed("beats", turns)
    assert missed == []


def _other_of_two(bench: Bench, beat: LoggedEvent, column: str) -> int:
    low = {"type": EventType.HEARTBEAT.code, "state": 3}[column]
    value: int = bench.rows[beat.id, beat.rev][column]
    return low + 1 if value == low else low


async def test_with_seals_an_added_event_is_caught(sealed_bench: Bench) -> None:
    bench = sealed_bench
    for job_id, log in bench.logs.items():
        last = every(log)[-1]
        # An annotation or a signal changes nothing but rev and time; let the row agree to it.
        if log[-1] is not last or bench.rows[job_id, last.rev]["digest"] is None:
            continue
        forged = bench.rows[job_id, last.rev] | {"rev": last.rev + 1}
        forged |= {"from_state": forged["to_state"], "type": EventType.COMPENSATED.code}
        forged.pop("xid", None)
        forged.pop("position", None)
        await _insert(bench.hand, "events", forged)
        async with bench.hand.turned("jobs", [Turn(job_id, None, "rev", last.rev + 1)]):
            texts = " ".join(p.text for p in await problems_of(bench.store) if p.id == job_id)
        await bench.hand.rows("DELETE FROM events WHERE id = $1 AND rev = $2", job_id, last.rev + 1)
        assert f"rev {last.rev + 1}: the seal is broken" in texts


async def test_with_seals_two_swapped_events_are_caught(sealed_bench: Bench) -> None:
    bench = sealed_bench
    [(job_id, log)] = [
        (job_id, log)
        for job_id, log in bench.logs.items()
        if sum(event.type is EventType.SIGNAL_RECEIVED for event in log) == 2
    ]
    one, two = (event.rev for event in log if event.type is EventType.SIGNAL_RECEIVED)
    turns = [Turn(job_id, one, "rev", 9999), Turn(job_id, two, "rev", one)]
    async with (
        bench.hand.turned("events", turns),
        bench.hand.turned("events", [Turn(job_id, 9999, "rev", two)]),
    ):
        texts = [p.text for p in await problems_of(bench.store) if p.id == job_id]
    assert f"rev {one}: the seal is broken" in " ".join(texts)
    assert f"rev {two}: the seal is broken" in " ".join(texts)


async def test_with_seals_a_removed_event_is_caught(sealed_bench: Bench) -> None:
    """Also where the rest is renumbered so that nothing else shows."""
    bench = sealed_bench
    [(job_id, log)] = [
        (job_id, log)
        for job_id, log in bench.logs.items()
        if sum(event.type is EventType.SIGNAL_RECEIVED for event in log) == 2
    ]
    gone = next(event for event in log if event.type is EventType.STEP_COMPLETED)
    row = bench.rows[job_id, gone.rev]
    later = [event.rev for event in every(log) if event.rev > gone.rev]
    await bench.hand.rows("DELETE FROM events WHERE id = $1 AND rev = $2", job_id, gone.rev)
    async with bench.hand.turned("events", [Turn(job_id, rev, "rev", rev - 1) for rev in later]):
        texts = " ".join(p.text for p in await problems_of(bench.store) if p.id == job_id)
    await _insert(bench.hand, "events", row)
    assert "the seal is broken" in texts
