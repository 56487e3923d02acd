"""Submit: what was asked for is there, whole, and once."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.lifecycle.alike import AlikeJobs, make_alike
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.payload import digest
from holdfast.lifecycle.record import NO_FACTS, JobId, NewJob
from holdfast.lifecycle.states import EventType, KeyKind, Kind, Link, Priority, State
from holdfast.lifecycle.submit import submit
from holdfast.lifecycle.times import After
from holdfast.ports.models import Limits, SubmitOutcome, SubmitRefused, Submitted
from holdfast.ports.store import Store
from holdfast.testing.factories import GATEWAY, HOUR, job_ids, new_job, submission
from holdfast.testing.store_actions import all_jobs, claim, stored, submit_one

EVERYTHING = {
    "task": "render",
    "body": '{"frames":[1,2,3],"name":"Überfahrt"}'.encode(),
    "tenant": "acme",
    "kind": Kind.COMMAND,
    "queue": "gpu",
    "priority": Priority.BATCH,
    "needs": frozenset({"cuda", "ffmpeg"}),
    "policy": Policy(max_attempts=2, start_timeout=HOUR, on_exhausted="fail", letter_on_fail=True),
    "cpus": 4,
    "memory_mb": 8192,
    "run_at": After(HOUR),
    "deadline_at": After(2 * HOUR),
    "admitted": False,
    "holds": ("budget", "quota"),
    "job_id": "render-7",
    "request_id": "request-7",
    "client_job_id": "1B4E28BA-2FA1-4D2B-883F-0016D3CCA427",
    "dedupe_key": "frames-1-3",
    "link_kind": Link.CHILD,
    "workflow_id": "film",
    "step_index": 3,
    "correlation_id": "correlation-7",
    "trace_id": "trace-7",
    "labels": {"team": "pictures"},
    "env": {"locale": "de"},
    "context_ptr": "s3://bucket/context",
    "adapter_id": "renderer-2",
    "files_id": "upload-7",
    "reason": "ordered by the director",
}
OF_THE_RECORD = (
    "tenant",
    "job_id",
    "kind",
    "task",
    "queue",
    "priority",
    "needs",
    "policy",
    "cpus",
    "memory_mb",
    "parent_id",
    "link_kind",
    "workflow_id",
    "step_index",
)
OWN = frozenset(
    {
        *("job_id", "request_id", "client_job_id", "dedupe_key"),
        *("admitted", "holds", "link_kind", "body"),
    }
)
"""What alike jobs cannot have."""
BIRTH_TIMES = ("created_at", "updated_at", "run_at", "deadline_at")
OF_THE_FIRST_EVENT = ("labels", "env", "context_ptr", "adapter_id", "files_id", "trace_id")


class SubmitContract:
    """Submit and read back."""

    @pytest.mark.req("A7", "C1", "C8")
    async def test_a_record_keeps_every_field_of_its_submission(self, store: Store) -> None:
        asked = submission(**EVERYTHING, parent_id=job_ids.mint())
        [outcome] = await store.submit([submit(asked, GATEWAY)])

        assert isinstance(outcome, Submitted)
        job = await stored(store, asked.id)
        assert outcome == Submitted(job, created=True)
        for name in OF_THE_RECORD:
            assert getattr(job, name) == getattr(asked, name), name
        assert (job.state, job.rev, job.attempt) == (State.PENDING, 1, 0)
        assert job.held_by == ("budget", "quota")
        assert job.updated_at == job.created_at
        assert job.run_at == job.created_at + HOUR
        assert job.deadline_at == job.created_at + 2 * HOUR
        given = (KeyKind.JOB_ID, KeyKind.REQUEST_ID, KeyKind.CLIENT_JOB_ID, KeyKind.DEDUPE)
        assert job.key_kinds == sum(kind.code for kind in given)

    @pytest.mark.req("B18", "B25", "C9")
    async def test_the_first_event_keeps_every_field_of_its_submission(self, store: Store) -> None:
        asked = submission(**EVERYTHING, parent_id=job_ids.mint())
        await store.submit([submit(asked, GATEWAY)])

        [event] = await store.events(asked.id)
        job = await stored(store, asked.id)
        assert (event.id, event.rev, event.type) == (asked.id, 1, EventType.CREATED)
        assert (event.from_state, event.to_state) == (None, State.PENDING)
        assert (event.actor, event.reason) == ("gateway:api", asked.reason)
        assert (event.request_id, event.correlation_id) == ("request-7", "correlation-7")
        assert (event.body, event.digest) == (asked.body, digest(asked.body))
        assert (event.at, event.version) == (job.created_at, 1)
        assert (event.run_at, event.deadline_at) == (job.run_at, job.deadline_at)
        assert event.created is not None
        for name in OF_THE_RECORD + OF_THE_FIRST_EVENT:
            assert getattr(event.created, name) == getattr(asked, name), name

    @pytest.mark.req("A13")
    async def test_the_first_event_keeps_what_the_rules_decided(self, store: Store) -> None:
        plain = new_job(admitted=False, holds=("approval:two/1/0", "approval:two/2/0"))
        verdict = {"verdict": "approve", "rule": "two", "rules": "ab" * 32, "decided_by": "kernel"}
        asked: dict[str, int | float | str | None] = {"cpus": None, "timeout_seconds": 1.5}
        facts = replace(plain.event.facts, **verdict, asked=asked)
        alike = new_job()
        await store.submit([replace(plain, event=replace(plain.event, facts=facts)), alike])

        assert (await store.events(plain.record.id))[0].facts == facts
        assert (await store.events(alike.record.id))[0].facts == NO_FACTS
        assert (await stored(store, plain.record.id)).held_by == facts.holds

    @pytest.mark.req("C1", "C7")
    async def test_a_plain_job_is_due_at_once_and_has_no_owner(self, store: Store) -> None:
        before = (await store.clock()).now
        job = await submit_one(store)
        after = (await store.clock()).now

        assert before <= job.created_at <= after
        assert job.run_at == job.created_at
        assert (job.state, job.rev, job.attempt) == (State.QUEUED, 1, 0)
        assert (job.owner, job.lease_expires_at, job.epoch) == (None, None, None)
        assert (job.result_digest, job.error_code, job.finished_at) == (None, None, None)
        assert (job.job_id, job.public_id) == (None, str(job.id))

    async def test_an_instant_to_run_at_is_kept_as_it_was_given(self, store: Store) -> None:
        instant = (await store.clock()).now + HOUR
        job = await submit_one(store, run_at=instant, deadline_at=instant + HOUR)

        assert (job.run_at, job.deadline_at) == (instant, instant + HOUR)

    async def test_answers_come_in_the_order_of_the_batch(self, store: Store) -> None:
        first = await submit_one(store, job_id="known")
        # Ids fall where the batch rises, so that a store that sorts must put its answers back.
        batch = [new_job(task=f"task-{number}") for number in range(5)][::-1]
        batch.insert(2, new_job(job_id="known"))
        outcomes = await store.submit(batch)

        found = [outcome.job.id for outcome in outcomes if isinstance(outcome, Submitted)]
        asked = [job.record.id for job in batch]
        assert found == [*asked[:2], first.id, *asked[3:]]
        assert await store.get(found) == [await stored(store, id_) for id_ in found]

    async def test_an_empty_batch_is_answered_with_nothing(self, store: Store) -> None:
        assert await store.submit([]) == []
        assert await store.commit([]) == []
        assert await store.get([]) == []

    async def test_an_unknown_id_is_answered_with_none_in_its_place(self, store: Store) -> None:
        job = await submit_one(store)

        assert await store.get([job_ids.mint(), job.id, job_ids.mint()]) == [None, job, None]
        assert await store.events(job_ids.mint()) == []

    async def test_a_large_batch_is_taken_whole(self, store: Store) -> None:
        batch = [new_job(body=b"%d" % number, step_index=number) for number in range(600)]
        outcomes = await store.submit(batch)

        assert all(isinstance(outcome, Submitted) and outcome.created for outcome in outcomes)
        jobs = await store.get([job.record.id for job in batch])
        assert [job.step_index for job in jobs if job] == list(range(600))
        assert len(await all_jobs(store)) == 600

    @pytest.mark.req("B5", "C6")
    async def test_a_batch_sent_again_after_a_lost_reply_makes_no_second_job(
        self, store: Store
    ) -> None:
        batch = [new_job(), new_job(job_id="given"), new_job(dedupe_key="key"), new_job()]
        first = await store.submit(batch)
        again = await store.submit(batch)

        assert [_id(outcome) for outcome in again] == [_id(outcome) for outcome in first]
        assert len(await all_jobs(store)) == 4

    @pytest.mark.req("B5", "C6")
    async def test_a_batch_sent_again_with_more_in_it_adds_only_what_is_new(
        self, store: Store
    ) -> None:
        known, new = new_job(), new_job()
        await store.submit([known])
        outcomes = await store.submit([new, known])

        assert [_id(outcome) for outcome in outcomes] == [new.record.id, known.record.id]
        assert len(await all_jobs(store)) == 2

    async def test_the_same_job_twice_in_one_batch_is_one_job(self, store: Store) -> None:
        job = new_job()
        outcomes = await store.submit([job, new_job(), job])

        assert _id(outcomes[0]) == _id(outcomes[2]) == job.record.id
        assert len(await all_jobs(store)) == 2

    @pytest.mark.req("C6")
    async def test_an_id_that_another_job_has_is_refused(self, store: Store) -> None:
        first = new_job(body=b"1")
        await store.submit([first])
        [outcome] = await store.submit([new_job(id=first.record.id, body=b"2")])

        assert isinstance(outcome, SubmitRefused)
        assert (outcome.code, outcome.holder) == ("key_conflict", first.record.id)
        [event] = await store.events(first.record.id)
        assert event.body == b"1"

    @pytest.mark.req("C1", "C8", "C9")
    async def test_alike_jobs_are_as_if_each_was_submitted_by_itself(self, store: Store) -> None:
        shared = {name: value for name, value in EVERYTHING.items() if name not in OWN}
        first = submit(submission(**shared), GATEWAY)
        single = submit(submission(**shared), GATEWAY)
        await store.submit([single])
        alike = _alike(first, [b"1", b'{"name":"\xc3\x9cberfahrt"}', b"3"])
        at = await store.submit_alike(alike)

        assert at is not None
        model = await stored(store, single.record.id)
        [event] = await store.events(single.record.id)
        moved = at - model.created_at
        for number, new in enumerate(alike.expand()):
            job = await stored(store, new.record.id)
            times = {name: getattr(model, name) + moved for name in BIRTH_TIMES}
            assert job == replace(model, id=job.id, **times)
            [own] = await store.events(job.id)
            assert own == replace(
                event,
                id=job.id,
                at=at,
                run_at=times["run_at"],
                deadline_at=times["deadline_at"],
                body=alike.bodies[number],
                digest=digest(alike.bodies[number]),
            )

    @pytest.mark.req("C1", "C7")
    async def test_plain_alike_jobs_are_due_at_once_in_their_order(self, store: Store) -> None:
        alike = _alike(new_job(), [b"%d" % number for number in range(700)])
        before = (await store.clock()).now
        at = await store.submit_alike(alike)

        assert at is not None
        assert before <= at <= (await store.clock()).now
        ids = [job.record.id for job in alike.expand()]
        jobs = await store.get(ids)
        assert {(job.run_at, job.created_at, job.updated_at) for job in jobs if job} == {(at,) * 3}
        assert {(job.state, job.rev, job.attempt) for job in jobs if job} == {(State.QUEUED, 1, 0)}
        [count] = await store.counts()
        assert (count.queue, count.state, count.jobs) == ("default", State.QUEUED, 700)
        assert [one.job.id for one in await claim(store, limit=700)] == ids

    @pytest.mark.req("B5", "C6")
    async def test_alike_jobs_sent_again_are_left_to_a_submit_of_each(self, store: Store) -> None:
        alike = _alike(new_job(), [b"1", b"2"])
        assert await store.submit_alike(alike) is not None

        assert await store.submit_alike(alike) is None
        again = await store.submit(alike.expand())
        assert [_id(outcome) for outcome in again] == [job.record.id for job in alike.expand()]
        assert len(await all_jobs(store)) == 2

    @pytest.mark.req("C6")
    async def test_alike_jobs_are_inserted_all_or_none(self, store: Store) -> None:
        known = new_job(body=b"7")
        await store.submit([known])
        alike = _alike(new_job(), [b"1", b"2", b"3"])
        alike = replace(alike, ids=[alike.ids[0], known.record.id.bytes, alike.ids[2]])

        assert await store.submit_alike(alike) is None
        assert [job.id for job in await all_jobs(store)] == [known.record.id]
        first, other, last = await store.submit(alike.expand())
        assert isinstance(first, Submitted)
        assert isinstance(other, SubmitRefused)
        assert isinstance(last, Submitted)

    @pytest.mark.req("A13")
    async def test_alike_jobs_are_left_to_a_policy_that_judges_each(self, store: Store) -> None:
        await store.apply_policy('version = 1\ndefault = "deny"\n', actor="ann")
        alike = _alike(new_job(), [b"1", b"2"])

        assert await store.submit_alike(alike) is None
        assert await all_jobs(store) == []
        outcomes = await store.submit(alike.expand())
        assert all(isinstance(one, Submitted) and one.job.held_by for one in outcomes)

    async def test_alike_jobs_of_one_name_too_many_are_refused_one_by_one(
        self, store: Store
    ) -> None:
        await store.set_limits(Limits(queues=1))
        await submit_one(store, queue="first")
        alike = _alike(new_job(queue="second"), [b"1", b"2"])

        assert await store.submit_alike(alike) is None
        assert [type(one) for one in await store.submit(alike.expand())] == [SubmitRefused] * 2
        assert len(await all_jobs(store)) == 1

    @pytest.mark.req("B25")
    async def test_alike_jobs_are_sealed_where_others_are(self, store: Store) -> None:
        await store.set_sealing(True)
        alike = _alike(new_job(), [b"1", b"2"])
        if await store.submit_alike(alike) is None:
            await store.submit(alike.expand())

        for new in alike.expand():
            [event] = await store.events(new.record.id)
            assert event.seal is not None


def _alike(first: NewJob, bodies: list[bytes]) -> AlikeJobs:
    return make_alike(first, [job_ids.mint().bytes for _ in bodies], bodies)


def _id(outcome: SubmitOutcome) -> JobId:
    assert isinstance(outcome, Submitted), outcome
    return outcome.job.id
