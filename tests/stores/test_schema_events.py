"""Events, heartbeats and keys: what raw SQL may not do to the truth itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import product
from typing import Any

import pytest

from holdfast.lifecycle.record import Job, LoggedEvent
from holdfast.lifecycle.seal import SEALED
from holdfast.lifecycle.states import BEATS, OWNED, Retention, State
from holdfast.lifecycle.transitions import legal_events
from holdfast.stores.columns import EVENT_COLUMNS
from holdfast.testing.factories import job_ids
from holdfast.testing.store_actions import all_jobs
from tests.stores.ledgers import Ledger, make_ledger
from tests.stores.raw import ENGINES, POSTGRES, Case, Raw
from tests.stores.samples import populate

CHANGED = "a change of an event"
UNERASED = "a change of a body other than its erasure"
UNSEALED = "a change of a seal"
REMOVED = "the removal of an event of a job"

# Words of nobody's law too: a code that is too large must not pass for another by arithmetic.
TYPES, STATES = range(38), range(19)

TRY_ALL = """
CREATE FUNCTION pg_temp.accepted() RETURNS SETOF int[] LANGUAGE plpgsql AS $$
DECLARE r int; t int; f int; s int; BEGIN
    FOR r IN 1..2 LOOP FOR t IN 0..37 LOOP FOR f IN -1..18 LOOP FOR s IN 0..18 LOOP
        BEGIN
            INSERT INTO events (id, rev, type, from_state, to_state, at, attempt, actor)
            VALUES (gen_random_uuid(), r, t, nullif(f, -1), s, 1, 0, 'nobody');
            RETURN NEXT ARRAY[r, t, f, s];
        EXCEPTION WHEN integrity_constraint_violation THEN NULL;
        END;
    END LOOP; END LOOP; END LOOP; END LOOP;
END $$
"""
INSERT_EVENT = (
    "INSERT INTO events (id, rev, type, from_state, to_state, at, attempt, actor) "
    "VALUES ($1, $2, $3, $4, $5, 1, 0, 'nobody')"
)
INSERT_BEAT = (
    "INSERT INTO beats (id, rev, type, state, at, lease_expires_at, attempt, actor) "
    "VALUES ($1, 4, $2, $3, 1, 2, 1, 'nobody')"
)


@pytest.fixture(scope="module", params=ENGINES)
def ledger(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    made = make_ledger(request, tmp_path_factory)
    asyncio.run(_populate(made))
    return made


async def _populate(ledger: Ledger) -> None:
    async with ledger.store() as store:
        await populate(store)


@pytest.fixture
async def raw(ledger: Ledger) -> AsyncIterator[Raw]:
    async with ledger.raw() as raw:
        yield raw


@pytest.fixture
async def entries(ledger: Ledger) -> list[tuple[Job, list[LoggedEvent]]]:
    async with ledger.store() as store:
        return [(job, await store.events(job.id)) for job in await all_jobs(store)]


@pytest.mark.req("B1", "C2", "C9", "C10")
async def test_only_legal_events_are_taken(raw: Raw) -> None:
    legal = {
        (1 if source is None else 2, kind.code, source.code if source else -1, target.code)
        for kind, source, target in legal_events()
        if kind not in BEATS
    }
    found = await _accepted(raw)
    assert found - legal == set()
    assert legal - found == set()


async def _accepted(raw: Raw) -> set[tuple[int, ...]]:
    if raw.engine == POSTGRES:
        await raw.rows(TRY_ALL)
        return {tuple(row[0]) for row in await raw.rows("SELECT pg_temp.accepted()")}
    found: set[tuple[int, ...]] = set()
    for rev, kind, source, target in product((1, 2), TYPES, (-1, *STATES), STATES):
        given = None if source < 0 else source
        if await raw.refusal(INSERT_EVENT, [job_ids.mint(), rev, kind, given, target]) is None:
            found.add((rev, kind, source, target))
    return found


@pytest.mark.req("B17")
async def test_only_owned_jobs_have_heartbeats(raw: Raw) -> None:
    legal = {(kind.code, state.code) for kind in BEATS for state in OWNED}
    cases = [
        Case(
            name=f"a beat of type {kind} in state {state}",
            sql=INSERT_BEAT,
            values=[job_ids.mint(), kind, state],
            rules=() if (kind, state) in legal else ("legal_beat",),
        )
        for kind, state in product(TYPES, STATES)
    ]
    assert await raw.complaints(cases) == []


@pytest.mark.req("B4", "C8")
async def test_a_revision_has_one_event(
    raw: Raw, entries: list[tuple[Job, list[LoggedEvent]]]
) -> None:
    cases = []
    for job, events in entries:
        event = next(event for event in reversed(events) if event.type not in BEATS)
        source = event.from_state and event.from_state.code
        values = [job.id, event.rev, event.type.code, source, event.to_state.code]
        name = f"rev {event.rev} of a {job.state} job again"
        cases.append(
            Case(name=name, sql=INSERT_EVENT, values=values, rules=("events_pkey", "events.rev"))
        )
    assert await raw.complaints(cases) == []


def _changed(column: str, event: LoggedEvent) -> Any:
    """Another value of the column's kind."""
    match column:
        case "id":
            return job_ids.mint()
        case "type" | "to_state" | "from_state" | "version":
            return 7
        case "actor" | "request_id" | "reason" | "correlation_id" | "data" | "body":
            return "other"
        case "digest" | "seal":
            return b"other"
        case _:
            return 12345


@pytest.mark.req("E1", "C9")
async def test_no_column_of_an_event_changes(
    raw: Raw, entries: list[tuple[Job, list[LoggedEvent]]]
) -> None:
    assert set(SEALED) == set(EVENT_COLUMNS) - {"body", "seal"}
    order = ("xid",) if raw.engine == POSTGRES else ("position",)
    cases = []
    for (job, events), column in product(entries, (*EVENT_COLUMNS, *order)):
        event = events[0]
        rules = {"body": (UNERASED,), "seal": (UNSEALED,)}.get(column, (CHANGED,))
        checks = ("legal_event", "first_event", "body_has_digest")
        cases.append(
            Case(
                name=f"{column} of the first event of a {job.state} job",
                sql=f"UPDATE events SET {column} = $2 WHERE id = $1 AND rev = 1",
                values=[job.id, _changed(column, event)],
                rules=(*rules, *checks),
            )
        )
    assert await raw.complaints(cases) == []


async def test_no_column_of_a_heartbeat_changes(
    raw: Raw, entries: list[tuple[Job, list[LoggedEvent]]]
) -> None:
    beaten = [job.id for job, events in entries if any(event.type in BEATS for event in events)]
    columns = await _columns(raw, "beats")
    cases = [
        Case(
            name=f"{column} of a heartbeat",
            sql=f"UPDATE beats SET {column} = $2 WHERE id = $1",
            values=[id_, 4 if column == "state" else _changed(column, entries[0][1][0])],
            rules=("a change of a heartbeat", "legal_beat", "beats_pkey", "beats.rev"),
        )
        for id_, column in product(beaten, columns)
    ]
    assert len(cases) > 20
    assert await raw.complaints(cases) == []


async def _columns(raw: Raw, table: str) -> list[str]:
    if raw.engine == POSTGRES:
        sql = "SELECT column_name::text FROM information_schema.columns WHERE table_name = $1"
    else:
        sql = "SELECT name FROM pragma_table_info($1)"
    return [row[0] for row in await raw.rows(sql, table)]


@pytest.mark.req("B19")
async def test_a_body_may_be_erased_and_its_digest_not(
    raw: Raw, entries: list[tuple[Job, list[LoggedEvent]]]
) -> None:
    cases = []
    for job, events in entries:
        where = "WHERE id = $1 AND rev = 1"
        name = f"of the first event of a {job.state} job"
        assert events[0].body is not None
        cases += [
            Case(
                name=f"erasure {name}",
                sql=f"UPDATE events SET body = NULL {where}",
                values=[job.id],
            ),
            Case(
                name=f"digest {name}",
                sql=f"UPDATE events SET digest = NULL {where}",
                values=[job.id],
                rules=(CHANGED, "body_has_digest"),
            ),
            Case(
                name=f"both {name}",
                sql=f"UPDATE events SET body = NULL, digest = NULL {where}",
                values=[job.id],
                rules=(CHANGED,),
            ),
        ]
    assert await raw.complaints(cases) == []


async def test_an_event_stays_as_long_as_its_job(
    raw: Raw, entries: list[tuple[Job, list[LoggedEvent]]]
) -> None:
    cases = [
        Case(
            name=f"removal of rev {event.rev} of a {job.state} job",
            sql="DELETE FROM events WHERE id = $1 AND rev = $2",
            values=[job.id, event.rev],
            rules=(REMOVED,),
        )
        for job, events in entries
        for event in events
        if event.type not in BEATS
    ]
    assert await raw.complaints(cases) == []


async def test_a_cleaned_job_may_be_purged_whole(
    raw: Raw, entries: list[tuple[Job, list[LoggedEvent]]]
) -> None:
    [job] = [job for job, _ in entries if job.retention is Retention.CLEANED]
    # The newest event of all stays on SQLite, so that its position is not given again.
    await raw.rows(INSERT_EVENT, job_ids.mint(), 1, 1, None, State.QUEUED.code)
    await raw.rows("DELETE FROM jobs WHERE id = $1", job.id)
    purge = Case(name="a purge", sql="DELETE FROM events WHERE id = $1", values=[job.id])
    assert await raw.complaints([purge]) == []


@pytest.mark.req("A1", "C11")
async def test_a_key_has_one_holder(raw: Raw) -> None:
    keys = await raw.rows("SELECT tenant, kind, key, id FROM keys")
    assert len({kind for _, kind, _, _ in keys}) == 4
    again = "INSERT INTO keys (tenant, kind, key, id, digest) VALUES ($1, $2, $3, $4, $5)"
    cases = []
    for tenant, kind, key, id_ in keys:
        for holder in (id_, job_ids.mint()):
            values = [tenant, kind, key, holder, b"x"]
            rules = ("keys_pkey", "keys.key")
            cases.append(Case(name=f"kind {kind} again", sql=again, values=values, rules=rules))
        elsewhere = ["another", kind, key, id_, b"x"]
        cases.append(Case(name="another tenant's key", sql=again, values=elsewhere))
    assert await raw.complaints(cases) == []
