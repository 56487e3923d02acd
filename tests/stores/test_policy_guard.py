"""While rules are applied, raw SQL brings no job into a queue that they have not judged."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import apsw
import asyncpg
import msgspec
import pytest

from holdfast.ids import mint_id
from holdfast.lifecycle.states import EventType, State
from holdfast.ports.models import Submitted
from holdfast.stores.postgres import policy as postgres_policy
from holdfast.testing.factories import new_job
from holdfast.webhooks.registry import TASK
from tests.stores.ledgers import Ledger, make_ledger
from tests.stores.raw import ENGINES, Raw

pytestmark = pytest.mark.req("A13")
OPEN = 'version = 1\ndefault = "allow"\n'
DENIES = OPEN + '[[rule]]\nid = "no"\nthen = "deny"\n'
UNJUDGED = "a job that the policy has not judged"
INSERT = (
    "INSERT INTO events (id, rev, type, from_state, to_state, at, attempt, actor, data) "
    "VALUES ($1, $2, $3, $4, $5, 1, 0, 'eve', $6)"
)

CURRENT = "UPDATE meta SET value = $1 WHERE key = 'policy'"


@pytest.fixture(params=ENGINES)
def ledger(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """A ledger of its own for each test: rules change its schema."""
    return make_ledger(request, tmp_path_factory)


async def apply(ledger: Ledger, *bodies: str | None) -> list[str]:
    """Apply rules one after the other, and return their digests."""
    digests = []
    async with ledger.store() as store:
        for body in bodies:
            applied = await store.apply_policy(body, actor="ann")
            digests.append("" if applied is None else applied.digest)
    return digests


@pytest.fixture
async def raw(ledger: Ledger) -> AsyncIterator[Any]:
    """Opens connections behind the store's back, once the test has arranged what it needs."""
    async with AsyncExitStack() as stack:
        yield lambda: stack.enter_async_context(ledger.raw())


def birth(state: State = State.QUEUED, **data: Any) -> list[Any]:
    """Return the values of a first event."""
    text = msgspec.json.encode({"task": "ship", **data}).decode()
    return [mint_id(), 1, EventType.CREATED.code, None, state.code, text]


async def is_refused(raw: Raw, values: list[Any]) -> bool:
    """Insert an event, and return whether that is refused for the lack of a judgement."""
    met = ""
    await raw.rows("SAVEPOINT one")
    try:
        await raw.rows(INSERT, *values)
    except (asyncpg.PostgresError, apsw.ConstraintError) as error:
        met = str(error)
        await raw.rows("ROLLBACK TO one")
    assert met == "" or UNJUDGED in met
    return met != ""


async def test_a_birth_into_a_queue_must_name_the_rules_that_are_applied(
    ledger: Ledger, raw: Any
) -> None:
    old, new = await apply(ledger, OPEN + "# old\n", OPEN)
    connection = await raw()

    assert await is_refused(connection, birth())
    assert await is_refused(connection, birth(rules=old))
    assert await is_refused(connection, birth(rules="no such"))
    assert not await is_refused(connection, birth(rules=new))
    assert not await is_refused(connection, birth(task=TASK))


async def test_a_birth_that_waits_has_no_verdict_or_that_of_the_rules_that_are_applied(
    ledger: Ledger, raw: Any
) -> None:
    old, new = await apply(ledger, OPEN + "# old\n", OPEN)
    connection = await raw()

    assert await is_refused(connection, birth(State.PENDING, rules=old))
    assert await is_refused(connection, birth(State.PENDING, rules="no such"))
    assert not await is_refused(connection, birth(State.PENDING, rules=new))
    assert not await is_refused(connection, birth(State.PENDING))
    assert not await is_refused(connection, birth(State.PENDING, rules=old, task=TASK))


async def test_a_job_that_waits_for_another_gate_is_judged_by_the_rules_that_are_applied(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So that only the database can show that there are others.
    monkeypatch.setattr(postgres_policy, "FRESH_SECONDS", 600.0)
    async with ledger.store() as store:
        await store.apply_policy(OPEN, actor="ann")
        [applied] = await apply(ledger, DENIES)

        [outcome] = await store.submit([new_job(holds=("upload",), admitted=False)])

        assert isinstance(outcome, Submitted)
        assert outcome.job.held_by == ("denied:no", "upload")
        [first] = await store.events(outcome.job.id)
        assert first.facts.rules == applied


async def test_an_admission_needs_a_judgement_by_any_rules_that_were_applied(
    ledger: Ledger, raw: Any
) -> None:
    old, new = await apply(ledger, OPEN + "# old\n", OPEN)
    connection = await raw()
    cases = [
        ({}, None, True),
        ({}, "no such", True),
        ({}, old, False),
        ({"rules": old}, None, False),
    ]
    cases.append(({"task": TASK}, None, False))
    for first, rules, refused in cases:
        born = birth(State.PENDING, **first)
        await connection.rows(CURRENT, old)
        assert not await is_refused(connection, born)
        await connection.rows(CURRENT, new)
        data = None if rules is None else msgspec.json.encode({"rules": rules}).decode()
        codes = (EventType.ADMITTED.code, State.PENDING.code, State.QUEUED.code)
        admission = [born[0], 2, *codes, data]
        assert await is_refused(connection, admission) is refused, (first, rules)


async def test_without_rules_nothing_is_refused_and_no_guard_is_left(
    ledger: Ledger, raw: Any
) -> None:
    await apply(ledger, OPEN, None)

    assert not await is_refused(await raw(), birth())


async def test_neither_rules_nor_their_entries_are_changed_or_removed(ledger: Ledger) -> None:
    await apply(ledger, OPEN)
    for sql in (
        "UPDATE policy_books SET body = 'x'",
        "DELETE FROM policy_books",
        "UPDATE policy_events SET actor = 'x'",
        "DELETE FROM policy_events",
    ):
        async with ledger.raw() as connection:
            refusal = await connection.refusal(sql, [])
            assert refusal is not None
            assert "refused on policy" in refusal
