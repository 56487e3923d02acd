"""A job that is set aside: why names the damage and the commands that look, repair and release."""

from __future__ import annotations

import pytest

from holdfast.errors import JobUnreadable
from holdfast.lifecycle.states import State
from holdfast.queries.why import reasons as r
from holdfast.queries.why.why import why
from holdfast.testing.store_actions import claim, job_in, submit_one
from tests.queries.why.acts import ask, codes, served
from tests.stores.damage import vandal
from tests.stores.ledgers import Ledger, make_ledger
from tests.stores.raw import ENGINES


@pytest.fixture(params=ENGINES)
def ledger(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return make_ledger(request, tmp_path_factory)


async def test_why_names_the_quarantine_before_all_else(ledger: Ledger) -> None:
    async with ledger.store() as store:
        job, _ = await served(store)
        other, _ = await served(store)
        before = (await store.clock()).now
        await store.quarantine([job.id], reason="its log is ahead of its row")
        answer, reason = await ask(store, job, r.SetAside)

        assert reason.damage == "its log is ahead of its row"
        assert before <= reason.since <= answer.now
        assert "not claimed and not swept: its log is ahead of its row" in answer.text
        assert codes(answer) == ["ready"]
        assert answer.advice is not None
        for command in ("verify", "rebuild --yes", f"quarantine release {job.id}"):
            assert f"holdfast {command}" in answer.advice
        assert (await why(store, other.id)).reason.code == "ready"

        await store.release_quarantined([job.id])
        assert (await why(store, job.id)).reason.code == "ready"


async def test_why_names_the_quarantine_of_an_ended_job_beside_its_end(ledger: Ledger) -> None:
    async with ledger.store() as store:
        job = await job_in(store, State.SUCCEEDED)
        await store.quarantine([job.id], reason="damaged")
        answer, _ = await ask(store, job, r.Ended)
        assert codes(answer) == ["quarantined"]
        assert "quarantined since" in answer.text
        await store.release_quarantined([job.id])


async def test_why_of_a_job_whose_first_event_is_missing_names_the_quarantine(
    ledger: Ledger,
) -> None:
    async with ledger.store() as store, vandal(ledger) as hand:
        bad = await submit_one(store)
        await hand.rows("DELETE FROM events WHERE id = $1 AND rev = 1", bad.id)
        assert await claim(store) == []
        answer = await why(store, bad.id)
        assert isinstance(answer.reason, r.SetAside)
        assert "first event" in answer.reason.damage


async def test_why_of_a_job_that_cannot_be_read_names_the_same_commands(ledger: Ledger) -> None:
    async with ledger.store() as store, vandal(ledger) as hand:
        bad = await submit_one(store)
        await hand.rows("UPDATE jobs SET policy = 12345 WHERE id = $1", bad.id)
        assert await claim(store) == []
        with pytest.raises(JobUnreadable) as caught:
            await why(store, bad.id)
    for command in ("verify", "rebuild --yes", f"quarantine release {bad.id}"):
        assert f"holdfast {command}" in str(caught.value)
    assert "quarantined" in str(caught.value)
