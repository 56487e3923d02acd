"""Keys: one holder each, also when two came at once; freed when their term ends (resolution 13)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Job
from holdfast.lifecycle.states import TERMINAL, KeyKind, State
from holdfast.ports.models import SubmitOutcome, SubmitRefused, Submitted
from holdfast.ports.store import Store
from holdfast.testing.factories import JANITOR, new_job
from holdfast.testing.store_actions import all_jobs, do, job_in, submit_one

UUID_4 = "1b4e28ba-2fa1-4d2b-883f-0016d3cca427"


class KeyContract:
    """Idempotent submits."""

    @pytest.mark.req("A1", "B5", "C6")
    async def test_a_known_job_id_with_the_same_body_is_the_same_job(self, store: Store) -> None:
        job = await submit_one(store, job_id="invoice-1", body=b"1")

        await _meets(store, job, job_id="invoice-1", body=b"1")

    @pytest.mark.req("A1")
    async def test_a_known_job_id_with_another_body_is_refused(self, store: Store) -> None:
        job = await submit_one(store, job_id="invoice-1", body=b"1")

        await _is_refused(store, job, "key_conflict", job_id="invoice-1", body=b"2")
        await _is_refused(store, job, "key_conflict", job_id="invoice-1", body=b"1", queue="other")

    @pytest.mark.req("A1")
    async def test_a_job_id_is_never_used_again(self, store: Store) -> None:
        job = await _cleaned(store, job_id="invoice-1", body=b"1", queue="default")

        await _meets(store, job, job_id="invoice-1", body=b"1")
        await _is_refused(store, job, "key_conflict", job_id="invoice-1", body=b"2")

    @pytest.mark.req("A1", "B5")
    async def test_a_submit_that_does_not_await_keys_takes_and_finds_them_all_the_same(
        self, store: Store
    ) -> None:
        [first] = await store.submit([new_job(job_id="invoice-1", body=b"1")], await_keys=False)
        batch = [new_job(job_id="invoice-1", body=b"1"), new_job(job_id="invoice-1", body=b"2")]
        again, other = await store.submit(batch, await_keys=False)

        assert isinstance(first, Submitted)
        assert first.created
        assert again == Submitted(first.job, created=False)
        assert isinstance(other, SubmitRefused)
        assert other.code == "key_conflict"

    @pytest.mark.req("A1", "B5")
    async def test_submits_at_once_that_do_not_await_a_key_refuse_nobody_else(
        self, store: Store
    ) -> None:
        async def one(number: int) -> list[SubmitOutcome]:
            keyed = new_job(job_id="invoice-1", body=b"1")
            batch = [new_job(), keyed, new_job(job_id=f"order-{number}")]
            return await store.submit(batch, await_keys=False)

        answers = await asyncio.gather(*map(one, range(8)))

        holder = await store.look_up("default", KeyKind.JOB_ID, "invoice-1")
        for before, keyed, after in answers:
            assert isinstance(before, Submitted)
            assert isinstance(after, Submitted)
            # It may be busy at the moment, never another job's.
            if isinstance(keyed, SubmitRefused):
                assert keyed.code == "key_busy"
            else:
                assert keyed.job.id == holder
        assert len(await all_jobs(store)) == 16 + (holder is not None)

    @pytest.mark.req("B5", "C6")
    async def test_a_request_sent_again_is_the_same_job(self, store: Store) -> None:
        job = await submit_one(store, request_id="request-1", body=b"1")

        await _meets(store, job, request_id="request-1", body=b"1")

    @pytest.mark.req("B5", "C6")
    async def test_a_request_id_with_another_body_is_refused(self, store: Store) -> None:
        job = await submit_one(store, request_id="request-1", body=b"1")

        await _is_refused(store, job, "request_id_reused", request_id="request-1", body=b"2")

    async def test_a_client_job_id_is_the_same_job_whatever_the_body(self, store: Store) -> None:
        job = await submit_one(store, client_job_id=UUID_4, body=b"1")

        await _meets(store, job, client_job_id=UUID_4, body=b"2")
        await _meets(store, job, client_job_id=UUID_4.upper(), body=b"1", queue="other")

    @pytest.mark.req("C11")
    async def test_a_dedupe_key_is_the_same_job_whatever_the_body(self, store: Store) -> None:
        job = await submit_one(store, dedupe_key="nightly", body=b"1")

        await _meets(store, job, dedupe_key="nightly", body=b"2", task="other")

    @pytest.mark.req("C11")
    async def test_a_dedupe_key_is_held_beyond_the_end_of_its_job(self, store: Store) -> None:
        job = await job_in(store, State.SUCCEEDED, dedupe_key="nightly")

        await _meets(store, job, dedupe_key="nightly")

    @pytest.mark.req("C11")
    async def test_a_live_key_is_held_until_its_job_ends(self, store: Store) -> None:
        for state in set(State) - TERMINAL - {State.UNKNOWN}:
            job = await job_in(store, state, dedupe_key=f"live-{state}", unique_live=True)

            await _meets(store, job, dedupe_key=f"live-{state}", unique_live=True)

    @pytest.mark.req("C11")
    async def test_a_live_key_is_free_as_soon_as_its_job_has_ended(self, store: Store) -> None:
        for state in TERMINAL:
            await job_in(store, state, dedupe_key=f"live-{state}", unique_live=True)

            next_one = await submit_one(store, dedupe_key=f"live-{state}", unique_live=True)
            holder = await store.look_up("default", KeyKind.DEDUPE, f"live-{state}")
            assert holder == next_one.id

    @pytest.mark.req("C11")
    async def test_a_dedupe_key_meets_its_holder_whatever_its_term(self, store: Store) -> None:
        lasting = await submit_one(store, dedupe_key="a")
        live = await submit_one(store, dedupe_key="b", unique_live=True)

        await _meets(store, lasting, dedupe_key="a", unique_live=True)
        await _meets(store, live, dedupe_key="b")

    async def test_keys_are_held_while_a_job_is_being_cleaned(self, store: Store) -> None:
        job = await job_in(store, State.FAILED, client_job_id=UUID_4, dedupe_key="nightly")
        job = await do(store, job, c.Clean(actor=JANITOR))

        await _meets(store, job, client_job_id=UUID_4)
        await _meets(store, job, dedupe_key="nightly")

    @pytest.mark.req("C11")
    async def test_a_cleaned_job_has_freed_its_keys_but_for_its_ids(self, store: Store) -> None:
        options = {"job_id": "invoice-1", "request_id": "request-1", "client_job_id": UUID_4}
        old = await _cleaned(store, dedupe_key="nightly", **options)

        await submit_one(store, client_job_id=UUID_4, dedupe_key="nightly")
        for kind, key in ((KeyKind.JOB_ID, "invoice-1"), (KeyKind.REQUEST_ID, "request-1")):
            assert await store.look_up("default", kind, key) == old.id

    async def test_tenants_do_not_share_keys(self, store: Store) -> None:
        keys = {"job_id": "one", "request_id": "two", "client_job_id": UUID_4, "dedupe_key": "four"}
        ours = await submit_one(store, **keys)
        theirs = await submit_one(store, tenant="acme", **keys)

        assert await store.look_up("default", KeyKind.JOB_ID, "one") == ours.id
        assert await store.look_up("acme", KeyKind.JOB_ID, "one") == theirs.id

    async def test_kinds_of_keys_do_not_meet(self, store: Store) -> None:
        await submit_one(store, job_id="same")
        await submit_one(store, request_id="same")
        await submit_one(store, client_job_id="same")
        await submit_one(store, dedupe_key="same")

        assert len(await all_jobs(store)) == 4

    async def test_every_key_leads_to_its_job(self, store: Store) -> None:
        job = await submit_one(
            store, job_id="one", request_id="two", client_job_id=UUID_4, dedupe_key="four"
        )
        live = await submit_one(store, dedupe_key="five", unique_live=True)

        assert await store.look_up("default", KeyKind.JOB_ID, "one") == job.id
        assert await store.look_up("default", KeyKind.REQUEST_ID, "two") == job.id
        assert await store.look_up("default", KeyKind.CLIENT_JOB_ID, UUID_4) == job.id
        assert await store.look_up("default", KeyKind.DEDUPE, "four") == job.id
        assert await store.look_up("default", KeyKind.DEDUPE, "five") == live.id
        assert await store.look_up("default", KeyKind.JOB_ID, "nobody's") is None
        assert await store.look_up("acme", KeyKind.JOB_ID, "one") is None

    @pytest.mark.req("A1")
    async def test_a_job_without_a_job_id_is_found_by_its_internal_one(self, store: Store) -> None:
        job = await submit_one(store)

        assert await store.look_up("default", KeyKind.JOB_ID, str(job.id)) == job.id
        assert await store.look_up("acme", KeyKind.JOB_ID, str(job.id)) is None

    @pytest.mark.req("A1")
    async def test_an_internal_id_given_as_a_job_id_makes_no_second_job(self, store: Store) -> None:
        job = await submit_one(store, body=b"1")
        [outcome] = await store.submit([new_job(job_id=str(job.id), body=b"2")])

        assert outcome == Submitted(job, created=False) or isinstance(outcome, SubmitRefused)
        assert await all_jobs(store) == [job]
        # Another tenant may call its job what it likes.
        await submit_one(store, tenant="acme", job_id=str(job.id))

    async def test_a_submit_that_meets_a_holder_takes_none_of_its_other_keys(
        self, store: Store
    ) -> None:
        holder = await submit_one(store, dedupe_key="taken")
        await _meets(store, holder, dedupe_key="taken", job_id="free")

        assert await store.look_up("default", KeyKind.JOB_ID, "free") is None
        await submit_one(store, job_id="free")

    async def test_keys_of_two_holders_make_no_third_job(self, store: Store) -> None:
        await submit_one(store, dedupe_key="one's")
        await submit_one(store, client_job_id=UUID_4)
        [outcome] = await store.submit([new_job(dedupe_key="one's", client_job_id=UUID_4)])

        assert isinstance(outcome, SubmitRefused)
        assert outcome.code == "key_conflict"
        assert len(await all_jobs(store)) == 2

    async def test_one_key_twice_in_a_batch_makes_one_job(self, store: Store) -> None:
        batch = [new_job(job_id="one", body=body) for body in (b"1", b"1", b"2")]
        first, same, other = await store.submit([*batch])

        assert isinstance(first, Submitted)
        assert first.created
        assert same == Submitted(first.job, created=False)
        assert isinstance(other, SubmitRefused)
        assert other.code == "key_conflict"
        assert [job.id for job in await all_jobs(store)] == [first.job.id]

    @pytest.mark.req("A1", "C11")
    async def test_submits_at_once_with_one_key_make_one_row(self, store: Store) -> None:
        batches = [
            [new_job(dedupe_key="a"), new_job(job_id="b"), new_job(client_job_id="c"), new_job()][
                # Half of them the other way round: two submitters must not wait in a circle.
                :: 1 if number % 2 else -1
            ]
            for number in range(20)
        ]
        answers = await asyncio.gather(*(store.submit(batch) for batch in batches))

        outcomes = [outcome for answer in answers for outcome in answer]
        created = [one for one in outcomes if isinstance(one, Submitted) and one.created]
        assert len(await all_jobs(store)) == 3 + 20
        assert len(created) == 3 + 20
        assert all(isinstance(outcome, Submitted) for outcome in outcomes)


async def _meets(store: Store, holder: Job, **options: Any) -> None:
    """Submit once more: the holder is returned and nothing is made."""
    before = await all_jobs(store)
    [outcome] = await store.submit([new_job(**options)])
    assert isinstance(outcome, Submitted), outcome
    assert outcome == Submitted(holder, created=False)
    assert await all_jobs(store) == before


async def _is_refused(store: Store, holder: Job, code: str, **options: Any) -> None:
    before = await all_jobs(store)
    [outcome] = await store.submit([new_job(**options)])
    assert isinstance(outcome, SubmitRefused), outcome
    assert (outcome.code, outcome.holder) == (code, holder.id)
    assert await all_jobs(store) == before


async def _cleaned(store: Store, **options: Any) -> Job:
    job = await job_in(store, State.SUCCEEDED, **options)
    job = await do(store, job, c.Clean(actor=JANITOR))
    return await do(store, job, c.Cleaned(actor=JANITOR))
