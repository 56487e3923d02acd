"""Damage that a ledger can take where no job's row shows it, and what verify says of it."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import UUID

import apsw
import asyncpg
import pytest
import pytest_asyncio

from holdfast.flow.command import perform
from holdfast.lifecycle import commands as c
from holdfast.lifecycle import seal
from holdfast.lifecycle.record import JobId
from holdfast.maintenance.rebuild import rebuild
from holdfast.maintenance.verify import verify
from holdfast.ports.store import Store
from holdfast.stores import maintenance
from holdfast.testing.factories import CONTROL, SHORT_RUN, job_ids
from holdfast.testing.store_actions import passed, running_job, submit_one
from holdfast.wiring import opened, read_address


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The address of an empty store of either engine."""
    if request.param == "sqlite":
        return str(tmp_path / "jobs.db")
    return str(request.getfixturevalue("postgres_url"))


@pytest_asyncio.fixture
async def store(place: str) -> AsyncIterator[Store]:
    async with opened(read_address(place)) as store:
        yield store


async def damage(place: str, statement: str) -> None:
    """Write past the law, as a foreign tool could."""
    if "://" in place:
        connection = await asyncpg.connect(place)
        await connection.execute("SET session_replication_role = replica")
        await connection.execute(statement)
        await connection.close()
        return
    file = apsw.Connection(place)
    triggers = file.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall()
    for (name,) in triggers:
        file.execute(f"DROP TRIGGER {name}")
    file.execute(statement)
    file.close()


async def told(store: Store) -> list[tuple[JobId | None, str]]:
    """Verify, and tell all that was said."""
    # Summaries are judged only of jobs that stood still since before the look.
    await passed(store, (await store.clock()).now)
    found: list[tuple[JobId | None, str]] = []
    await verify(store, on_problem=lambda one: found.append((one.id, one.text)))
    return found


def matches(found: list[tuple[JobId | None, str]], id_: JobId | None, pattern: str) -> bool:
    """Whether one problem was told, and it is this."""
    return len(found) == 1 and found[0][0] == id_ and re.search(pattern, found[0][1]) is not None


async def test_a_body_gone_from_a_live_job_is_missed(store: Store, place: str) -> None:
    job = await submit_one(store, body=b'{"pay":1}')
    assert await told(store) == []
    await damage(place, "UPDATE events SET body = NULL")
    found = await told(store)
    assert matches(found, job.id, "rev 1: the body is missing"), found


async def test_a_changed_policy_is_noticed(store: Store, place: str) -> None:
    await submit_one(store)
    await damage(place, "UPDATE policies SET body = replace(body, '{', '{ ')")
    found = await told(store)
    assert matches(found, None, r"policy \d+ is not what was written"), found


async def test_a_changed_lease_beside_its_policy_is_noticed(store: Store, place: str) -> None:
    await submit_one(store)
    await damage(place, "UPDATE policies SET lease = lease + 1")
    found = await told(store)
    assert matches(found, None, r"policy \d+ is not what was written"), found


async def test_changed_needs_are_noticed(store: Store, place: str) -> None:
    await submit_one(store, needs=frozenset({"gpu"}))
    await damage(place, "UPDATE needs SET body = '[\"tpu\"]' WHERE id <> 0")
    found = await told(store)
    assert matches(found, None, r"needs \d+ is not what was written"), found


async def test_a_key_of_no_job_is_found_and_mended(store: Store, place: str) -> None:
    job = await submit_one(store, dedupe_key="K")
    await damage(
        place,
        f"INSERT INTO keys SELECT tenant, kind, 'ORPHAN', {nobody(place)}, digest FROM keys",
    )
    found = await told(store)
    pattern = "neither a row nor events, and still holds its dedupe.* 'ORPHAN'"
    assert matches(found, NOBODY, pattern), found
    report = await rebuild(store)
    assert await told(store) == []
    assert await holders(store) == {"K": job.id}
    assert (report.freed, report.changed, report.skipped) == (1, 0, [])


async def test_a_key_that_was_given_to_no_job_comes_back_to_its_own(
    store: Store, place: str
) -> None:
    job = await submit_one(store, dedupe_key="K")
    await damage(place, f"UPDATE keys SET id = {nobody(place)}")
    assert {id_ for id_, _ in await told(store)} == {job.id, NOBODY}
    await rebuild(store)
    assert await told(store) == []
    assert await holders(store) == {"K": job.id}


async def test_keys_of_no_job_are_freed_wherever_they_are_when_one_batch_is_too_small(
    store: Store, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "FREE_BATCH", 2)
    jobs = {key: (await submit_one(store, dedupe_key=key)).id for key in ("A", "B", "C")}
    strays = [*(UUID(int=n) for n in (0, 1, 1, 1, 2)), job_ids.mint(), NOBODY]
    jobs |= {key: (await submit_one(store, dedupe_key=key)).id for key in ("D", "E")}
    listed = ", ".join(f"({n}, {nobody(place, id_)})" for n, id_ in enumerate(strays))
    await damage(
        place,
        f"WITH strays (n, id) AS (VALUES {listed}) INSERT INTO keys SELECT tenant, kind,"
        " 'ORPHAN' || n, strays.id, digest FROM keys, strays WHERE key = 'A'",
    )
    assert await store.free_stray_keys() == len(strays)
    assert await holders(store) == jobs
    assert await store.free_stray_keys() == 0


NOBODY = JobId(UUID(int=2**128 - 1))


def nobody(place: str, id_: UUID = NOBODY) -> str:
    """An id that no job has, as the engine writes it."""
    return f"'{id_}'::uuid" if "://" in place else f"x'{id_.hex}'"


async def holders(store: Store) -> dict[str, JobId]:
    """Tell which key is whose."""
    return {
        key.key: entry.id async for batch in store.ledger() for entry in batch for key in entry.keys
    }


async def test_a_held_job_without_a_claim_is_found_and_mended(store: Store, place: str) -> None:
    job = await running_job(store)
    await damage(place, "DELETE FROM claims")
    found = await told(store)
    assert matches(found, job.id, "no claim names it"), found
    assert (await rebuild(store)).changed == 1
    assert await told(store) == []
    assert [held.id for held in await store.owned(job.owner or "")] == [job.id]


async def test_a_held_job_that_is_rebuilt_twice_is_found_by_its_owner_and_a_sweep(
    store: Store, place: str
) -> None:
    job = await running_job(store, policy=SHORT_RUN)
    for _ in range(2):
        await damage(place, "DELETE FROM jobs")
        assert await store.owned(job.owner or "") == []
        # A sweep that looks at the claim now would look again only in minutes.
        await passed(store, job.lease_expires_at)
        await store.due()
        assert (await rebuild(store)).changed == 1
    assert await told(store) == []
    assert [held.id for held in await store.owned(job.owner or "")] == [job.id]
    assert [lost.id for lost in (await store.due()).jobs] == [job.id]


async def test_wrong_summaries_are_found_and_mended(store: Store, place: str) -> None:
    await submit_one(store, queue="q")
    column = "delta" if "://" in place else "jobs"
    await damage(place, f"UPDATE counts SET {column} = 77")
    found = await told(store)
    assert matches(found, None, "count 77 jobs queued in queue 'q' of tenant .*, there are 1"), (
        found
    )
    await rebuild(store)
    assert await told(store) == []


async def test_sealing_off_and_on_again_is_no_damage(store: Store) -> None:
    await store.set_sealing(True)
    job = await submit_one(store)
    await store.set_sealing(False)
    await perform(store, job.id, c.Hold(actor=CONTROL, hold="a"))
    assert await told(store) == []
    await store.set_sealing(True)
    await perform(store, job.id, c.Unhold(actor=CONTROL, hold="a"))
    await perform(store, job.id, c.Hold(actor=CONTROL, hold="b"))
    assert await told(store) == []


async def test_the_seals_on_both_sides_of_a_pause_still_catch_a_change(
    store: Store, place: str
) -> None:
    await store.set_sealing(True)
    job = await submit_one(store)
    await store.set_sealing(False)
    await perform(store, job.id, c.Hold(actor=CONTROL, hold="a"))
    await store.set_sealing(True)
    await perform(store, job.id, c.Unhold(actor=CONTROL, hold="a"))
    await damage(place, "UPDATE events SET actor = 'gateway:mallory' WHERE rev <> 2")
    texts = " ".join(text for _, text in await told(store))
    assert "rev 1: the seal is broken" in texts
    assert "rev 3: the seal is broken" in texts


async def test_a_seal_removed_while_sealing_was_on_is_noticed(
    store: Store, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seal, "SWITCH_SPAN", 0)
    await store.set_sealing(True)
    job = await submit_one(store)
    assert await told(store) == []
    await damage(place, "UPDATE events SET seal = NULL")
    found = await told(store)
    assert matches(found, job.id, "rev 1: has no seal though sealing was on"), found


def test_an_event_near_a_switch_may_stand_on_either_side_of_it() -> None:
    span = seal.SWITCH_SPAN
    switches = [(100 * span, True), (200 * span, False)]
    judged = [
        seal.must_be_sealed(switches, at * span, backdated=False) for at in (50, 100, 150, 200, 250)
    ]
    assert judged == [False, False, True, False, False]


def test_a_backdated_event_must_be_sealed_only_where_sealing_never_ended() -> None:
    span = seal.SWITCH_SPAN
    switches = [(100 * span, True), (200 * span, False), (300 * span, True)]
    assert not seal.must_be_sealed(switches, 150 * span, backdated=True)
    assert seal.must_be_sealed(switches, 350 * span, backdated=True)
