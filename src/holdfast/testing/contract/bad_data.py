"""Bad data: refused before anything is written; never a stranger's trouble."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.errors import BadData
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.derive import apply, born
from holdfast.lifecycle.invariants import broken_rules
from holdfast.lifecycle.payload import BODY_LIMIT, TEXT_LIMIT, digest, encode_body
from holdfast.lifecycle.record import NO_FACTS, SIGNAL_NAME, Change, Facts, Job, NewJob
from holdfast.lifecycle.states import OWNED, EventType, State
from holdfast.lifecycle.times import After
from holdfast.lifecycle.transitions import legal_events, moves
from holdfast.ports.models import Committed, Rejected, SubmitRefused, Submitted
from holdfast.ports.store import Store
from holdfast.testing.factories import CONTROL, HOUR, RECONCILER, fresh, new_job, owner_of
from holdfast.testing.store_actions import (
    all_jobs,
    change,
    claim_one,
    commit_one,
    do,
    job_in,
    running_job,
    stored,
    submit_one,
)

TEXTS = (
    "plain",
    "Grüße, 世界, مرحبا, 👩‍🚀",
    "'; DROP TABLE jobs; --",
    'a "quoted" \\ back\\\\slash {curly} [1,2] $1 :name %s ?',
    "line\nbreak\ttab\r\x01\x1f\x7f",
    "\u200b\ufeff\u202e\U0010ffff",
    "x" * TEXT_LIMIT,
    "👩" * TEXT_LIMIT,
)
BODIES: tuple[Any, ...] = (
    None,
    "",
    0,
    -(2**63),
    2**63 - 1,
    0.1,
    1e308,
    True,
    [],
    {},
    {"": {"": [None, [[], {}]]}},
    *TEXTS,
    {text: text for text in TEXTS},
)


class NewerFacts(Facts, frozen=True, kw_only=True, omit_defaults=True):
    """What an event of a newer version might hold."""

    moon: str | None = None


class BadDataContract:
    """Round trips at the edges, and rows that the law forbids."""

    async def test_every_body_comes_back_byte_for_byte(self, store: Store) -> None:
        bodies = [encode_body(value) for value in BODIES]
        batch = [new_job(body=body) for body in bodies]
        await store.submit(batch)

        for job, body in zip(batch, bodies, strict=True):
            [event] = await store.events(job.record.id)
            assert (event.body, event.digest) == (body, digest(body))

    async def test_every_result_comes_back_byte_for_byte(self, store: Store) -> None:
        for value in BODIES:
            body = encode_body(value)
            job = await running_job(store)
            job = await do(store, job, c.Complete(actor=owner_of(job), body=body))
            assert (await store.events(job.id))[-1].body == body

    async def test_a_body_of_the_full_size_is_kept(self, store: Store) -> None:
        body = encode_body("x" * (BODY_LIMIT - 2))
        job = await submit_one(store, body=body)
        claimed = await claim_one(store)
        assert claimed.body == body
        running = await do(store, claimed.job, c.Start(actor=owner_of(claimed.job)))
        await do(store, running, c.Complete(actor=owner_of(running), body=body))

        assert [event.body for event in await store.events(job.id)] == [body, None, None, body]

    async def test_every_text_comes_back_as_it_was(self, store: Store) -> None:
        for text in TEXTS:
            short = text[:200]
            job = await submit_one(
                store,
                task=short,
                queue=short,
                tenant=short,
                needs=frozenset({short}),
                job_id=text,
                workflow_id=text,
                correlation_id=text,
                reason=text,
                context_ptr=text,
                labels={short: text},
                env={short: text},
                holds=(text,),
            )
            assert (job.task, job.queue, job.tenant) == (short, short, short)
            assert (job.needs, job.job_id, job.held_by) == (frozenset({short}), text, (text,))
            [event] = await store.events(job.id)
            assert (event.reason, event.correlation_id) == (text, text)
            assert event.created is not None
            assert event.created.labels == event.created.env == {short: text}

    async def test_every_text_of_a_change_comes_back_as_it_was(self, store: Store) -> None:
        for text in TEXTS:
            job = await running_job(store, owner=text[:200])
            signal = c.SignalJob(actor=CONTROL, name=text[:SIGNAL_NAME], reason=text)
            job = await do(store, job, signal)
            job = await do(store, job, c.Step(actor=owner_of(job), name=text, request_id=text))
            fail = c.Fail(actor=owner_of(job), error_code=text, result_ptr=text)
            job = await do(store, job, fail)

            assert (job.error_code, job.result_ptr) == (text, text)
            assert job.signals[0].name == text[:SIGNAL_NAME]
            events = await store.events(job.id)
            assert (events[3].reason, events[4].request_id) == (text, text)
            assert (events[5].actor, events[4].facts.step) == (text[:200], text)

    async def test_what_no_database_can_hold_is_refused_before_it_is_written(
        self, store: Store
    ) -> None:
        for bad in ("a\0b", "\ud800", "x" * (TEXT_LIMIT + 1)):
            for name in ("queue", "job_id", "dedupe_key", "reason"):
                with pytest.raises(BadData):
                    await store.submit([new_job(), new_job(**{name: bad})])
        for value in ("a\0b", "\ud800", float("nan"), 2**63, object(), "x" * BODY_LIMIT):
            with pytest.raises(BadData):
                encode_body(value)
        assert await all_jobs(store) == []

    async def test_one_bad_submit_does_not_fail_its_neighbours(self, store: Store) -> None:
        bad = [_misborn(task="\ud800"), _misborn(state=State.RUNNING)]
        good = [new_job() for _ in range(6)]
        batch = [good[0], bad[0], *good[1:4], bad[1], *good[4:]]
        outcomes = await store.submit(batch)

        assert [type(outcomes[number]) for number in (1, 5)] == [SubmitRefused] * 2
        created = [one.job.id for one in outcomes if isinstance(one, Submitted)]
        assert created == [job.record.id for job in good]
        assert len(await all_jobs(store)) == 6

    @pytest.mark.req("C1")
    async def test_one_bad_change_does_not_fail_its_neighbours(self, store: Store) -> None:
        jobs = [await running_job(store) for _ in range(7)]
        batch = [change(job, c.Complete(actor=owner_of(job), body=b"1")) for job in jobs]
        batch[1] = _forged(batch[1], body=None, digest=None)
        batch[4] = _forged(batch[4], facts=Facts(result_ptr="\ud800"))
        outcomes = await store.commit(batch)

        kinds = [Rejected if number in (1, 4) else Committed for number in range(7)]
        assert [type(outcome) for outcome in outcomes] == kinds
        assert await store.get([jobs[1].id, jobs[4].id]) == [jobs[1], jobs[4]]

    async def test_one_bad_submit_of_a_change_fails_that_change_alone(self, store: Store) -> None:
        jobs = [await running_job(store) for _ in range(3)]
        batch = [
            change(job, c.Fail(actor=owner_of(job), error_code="boom", submits=(child,)))
            for job, child in zip(
                jobs, (new_job(), _misborn(state=State.RUNNING), new_job()), strict=True
            )
        ]
        outcomes = await store.commit(batch)

        assert [type(outcome) for outcome in outcomes] == [Committed, Rejected, Committed]
        assert await stored(store, jobs[1].id) == jobs[1]
        assert len(await all_jobs(store)) == 5

    async def test_a_bad_change_is_refused_before_it_is_written(self, store: Store) -> None:
        job = await running_job(store)
        actor = owner_of(job)
        for bad in ("a\0b", "\ud800", "x" * (TEXT_LIMIT + 1)):
            for command in (
                c.Fail(actor=actor, error_code=bad),
                c.Complete(actor=actor, result_ptr=bad),
                c.Complete(actor=actor, reason=bad),
                c.Complete(actor=actor, request_id=bad),
                c.Step(actor=actor, name=bad),
                c.Wait(actor=actor, signal=bad),
                c.SignalJob(actor=CONTROL, name=bad),
                c.SignalJob(actor=replace(CONTROL, name=bad), name="go"),
            ):
                with pytest.raises(BadData):
                    change(job, command)
        for body in (b"not json", b"", b'"%s"' % (b"x" * BODY_LIMIT), b'"\\u0000"'):
            with pytest.raises(BadData):
                change(job, c.Complete(actor=actor, body=body))
        assert await stored(store, job.id) == job

    @pytest.mark.req("C1")
    async def test_a_record_that_breaks_an_invariant_is_rejected(self, store: Store) -> None:
        job = await running_job(store)
        actor = owner_of(job)
        broken = (
            _forged(change(job, c.Complete(actor=actor)), body=None, digest=None),
            _forged(change(job, c.Fail(actor=actor, error_code="boom")), facts=NO_FACTS),
            _forged(change(job, c.Wait(actor=actor, signal="go")), facts=NO_FACTS),
        )
        for one in broken:
            assert broken_rules(one.next)
            outcome = await commit_one(store, one)
            assert isinstance(outcome, Rejected), (one.event.type, outcome)
            assert await stored(store, job.id) == job
            assert len(await store.events(job.id)) == 3

    @pytest.mark.req("A11", "B1", "B3", "C2", "C13")
    async def test_a_move_that_is_not_in_the_table_is_rejected(self, store: Store) -> None:
        states = [state for state in State if state is not State.UNKNOWN]
        for source in states:
            job = await job_in(store, source)
            for target in states:
                if (source, target) in moves():
                    continue
                outcome = await commit_one(store, _moved(job, target))
                assert isinstance(outcome, Rejected), (source, target, outcome)
            assert await stored(store, job.id) == job

    @pytest.mark.req("A15", "C13")
    async def test_a_terminal_record_cannot_be_changed(self, store: Store) -> None:
        job = await job_in(store, State.FAILED)
        for name, value in (("error_code", "other"), ("failures", 2), ("attempt", 3)):
            note = change(await stored(store, job.id), c.Compensated(actor=RECONCILER))
            await store.commit([replace(note, next=replace(note.next, **{name: value}))])

            assert getattr(await stored(store, job.id), name) == getattr(job, name)

    @pytest.mark.req("B27")
    async def test_a_fact_of_a_newer_version_is_passed_over(self, store: Store) -> None:
        job = await submit_one(store)
        held = change(job, c.Hold(actor=CONTROL, hold="quota", request_id=fresh("hold")))
        newer = NewerFacts(held="quota", moon="full")
        await store.commit([_forged(held, facts=newer)])

        [_, event] = await store.events(job.id)
        assert (event.type, event.facts.held) == (EventType.HELD, "quota")
        assert (await stored(store, job.id)).held_by == ("quota",)


def _misborn(*, task: str = "greet", state: State = State.QUEUED) -> NewJob:
    """Make a new job that no submit would have let through."""
    event = new_job().event
    assert event.created is not None
    event = replace(event, to_state=state, created=replace(event.created, task=task))
    return NewJob(record=born(event), event=event)


def _forged(decided: Change, **fields: Any) -> Change:
    """Bend the event of a change, and the record with it, as a faulty law would have."""
    event = replace(decided.event, **fields)
    return replace(decided, event=event, next=apply(decided.record, event))


def _moved(job: Job, target: State) -> Change:
    """Move a job along an edge that the table does not have."""
    note = (
        c.Compensated(actor=RECONCILER)
        if job.terminal
        else c.SignalJob(actor=CONTROL, name="go", body=b"1")
    )
    kind = next(kind for kind, _, leads_to in sorted(legal_events(), key=str) if leads_to is target)
    return _forged(
        change(job, note),
        type=kind,
        to_state=target,
        lease_expires_at=After(HOUR) if target in OWNED else None,
        run_at=After(HOUR),
        facts=Facts(last_owner="worker-0", error_code="forged", wait_for="forged"),
        body=b"1",
        digest=digest(b"1"),
    )
