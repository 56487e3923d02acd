"""Every operation of the law, written and read back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.payload import digest
from holdfast.lifecycle.record import Actor, Job, KeptOutput, LoggedEvent, Signal
from holdfast.lifecycle.states import (
    LIVE,
    TERMINAL,
    CancelMode,
    EventType,
    Letter,
    Link,
    Retention,
    Role,
    State,
)
from holdfast.lifecycle.times import After
from holdfast.ports.store import Store
from holdfast.testing.factories import (
    CONTROL,
    HOUR,
    JANITOR,
    RECONCILER,
    SCHEDULER,
    SHORT_CLAIM,
    SHORT_RUN,
    job_ids,
    new_job,
    owner_of,
    worker,
)
from holdfast.testing.store_actions import (
    WAYS_OUT,
    claim_one,
    claimed_job,
    do,
    job_in,
    passed,
    running_job,
    stored,
    submit_one,
)

BOUNDARY = ("state", "attempt", "failures", "finished_at", "result_digest", "error_code")
"""What resolution 10 freezes at the end of a job."""


async def last(store: Store, job: Job) -> LoggedEvent:
    """Read a job's newest event."""
    return (await store.events(job.id))[-1]


class OperationContract:
    """One test or more for each operation, from each kind of state it starts in."""

    async def test_admit(self, store: Store) -> None:
        job = await submit_one(store, admitted=False)
        job = await do(store, job, c.Admit(actor=SCHEDULER))

        assert job.state is State.QUEUED
        assert (await last(store, job)).type is EventType.ADMITTED
        assert (await claim_one(store)).job.id == job.id

    async def test_deny(self, store: Store) -> None:
        job = await submit_one(store, admitted=False)
        job = await do(store, job, c.Deny(actor=SCHEDULER, rule="no-prod", body=b'"why"'))

        assert (job.state, job.error_code) == (State.DENIED, "denied")
        event = await last(store, job)
        assert (event.facts.rule, event.body) == ("no-prod", b'"why"')

    async def test_hold_and_unhold_in_every_state_that_may_be_held(self, store: Store) -> None:
        for state in (State.PENDING, State.QUEUED, State.RETRYING, State.STALLED):
            job = await job_in(store, state)
            job = await do(store, job, c.Hold(actor=CONTROL, hold="b"))
            job = await do(store, job, c.Hold(actor=SCHEDULER, hold="a"))
            assert job.held_by == ("a", "b")
            job = await do(store, job, c.Unhold(actor=CONTROL, hold="b"))
            job = await do(store, job, c.Unhold(actor=CONTROL, hold="a"))
            assert (job.state, job.held_by) == (state, ())

    async def test_a_held_job_that_ends_is_held_no_more(self, store: Store) -> None:
        job = await submit_one(store, holds=("quota",))
        job = await do(store, job, c.Cancel(actor=CONTROL))

        assert job.held_by == ()

    async def test_reschedule(self, store: Store) -> None:
        job = await submit_one(store)
        job = await do(store, job, c.Reschedule(actor=CONTROL, run_at=After(HOUR)))
        assert job.run_at == job.updated_at + HOUR
        job = await do(store, job, c.Reschedule(actor=CONTROL, run_at=job.created_at + 1))
        assert job.run_at == job.created_at + 1

    @pytest.mark.req("B17", "C1")
    async def test_start(self, store: Store) -> None:
        claimed = await claimed_job(store)
        job = await do(store, claimed, c.Start(actor=owner_of(claimed)))

        assert (job.state, job.owner) == (State.RUNNING, claimed.owner)
        assert job.started_at == job.updated_at
        assert job.timeout_at == job.updated_at + HOUR
        assert (await last(store, job)).type is EventType.STARTED

    @pytest.mark.req("B17", "C8")
    async def test_heartbeats_raise_the_revision_and_are_counted(self, store: Store) -> None:
        job = await running_job(store)
        for by_handler in (False, True, True):
            job = await do(store, job, c.Heartbeat(actor=owner_of(job), by_handler=by_handler))
        assert (job.rev, job.beats) == (6, 3)
        job = await do(store, job, c.Complete(actor=owner_of(job)))

        events = await store.events(job.id)
        assert [event.rev for event in events] == [1, 2, 3, 4, 5, 6, 7]
        assert [event.type for event in events[3:6]] == [
            EventType.LEASE_RENEWED,
            EventType.HEARTBEAT,
            EventType.HEARTBEAT,
        ]
        assert (events[6].beats, job.beats) == (3, 0)

    async def test_a_heartbeat_keeps_who_why_and_under_which_request(self, store: Store) -> None:
        job = await claimed_job(store, owner="worker-7")
        beat = c.Heartbeat(actor=owner_of(job), request_id="beat-1", reason="half of the lease")
        job = await do(store, job, beat)

        event = await last(store, job)
        assert (event.actor, event.request_id) == ("worker-7", "beat-1")
        assert (event.reason, event.attempt) == ("half of the lease", 1)
        assert (event.from_state, event.to_state) == (State.CLAIMED, State.CLAIMED)
        assert event.lease_expires_at == job.lease_expires_at

    async def test_adopt(self, store: Store) -> None:
        for state in (State.CLAIMED, State.RUNNING):
            old = await job_in(store, state)
            job = await do(store, old, c.Adopt(actor=Actor(Role.HOST, "worker-9")))

            assert (job.state, job.owner) == (State.RUNNING, "worker-9")
            assert job.started_at == (old.started_at or job.updated_at)
            assert (await last(store, job)).facts.last_owner == old.owner

    async def test_step(self, store: Store) -> None:
        job = await running_job(store)
        actor = owner_of(job)
        job = await do(store, job, c.Step(actor=actor, name="charge", started=True))
        assert (await last(store, job)).type is EventType.STEP_STARTED
        job = await do(store, job, c.Step(actor=actor, name="charge", use=2, body=b"null"))

        event = await last(store, job)
        assert event.type is EventType.STEP_COMPLETED
        assert (event.facts.step, event.facts.step_use, event.body) == ("charge", 2, b"null")

    async def test_a_step_consumes_the_oldest_signal_of_its_name(self, store: Store) -> None:
        job = await running_job(store)
        for name in ("paid", "go", "go"):
            job = await do(store, job, c.SignalJob(actor=CONTROL, name=name))
        assert job.signals == (Signal("paid", 4), Signal("go", 5), Signal("go", 6))
        job = await do(store, job, c.Step(actor=owner_of(job), name="wait", consumes="go"))

        assert job.signals == (Signal("paid", 4), Signal("go", 6))
        assert (await last(store, job)).facts.consumed == 5

    async def test_progress(self, store: Store) -> None:
        job = await running_job(store)
        job = await do(store, job, c.Progress(actor=owner_of(job), body=b'{"done":0.5}'))

        assert (await last(store, job)).body == b'{"done":0.5}'

    async def test_progress_records_that_a_run_cannot_be_killed(self, store: Store) -> None:
        for body in (None, b'{"thread":"t-1"}'):
            job = await running_job(store)
            before = await do(store, job, c.RequestCancel(actor=CONTROL))
            progress = c.Progress(actor=owner_of(job), unkillable=True, body=body)
            job = await do(store, before, progress)

            event = await last(store, job)
            assert (event.type, event.facts.kill) == (EventType.PROGRESSED, "unkillable")
            assert (event.body, event.digest) == (body, body and digest(body))
            assert (job.state, job.lease_expires_at) == (State.RUNNING, before.lease_expires_at)

    async def test_wait_for_a_signal_or_a_time(self, store: Store) -> None:
        job = await running_job(store)
        wait = c.Wait(actor=owner_of(job), signal="approved", until=After(HOUR))
        job = await do(store, job, wait)

        assert (job.state, job.wait_for, job.owner) == (State.WAITING, "approved", None)
        assert (job.run_at, job.timeout_at) == (job.updated_at + HOUR, None)

    async def test_wait_for_a_signal_alone_has_no_end(self, store: Store) -> None:
        job = await job_in(store, State.WAITING)

        assert (job.run_at, job.wait_for) == (None, "go")

    async def test_resume_by_a_signal(self, store: Store) -> None:
        job = await job_in(store, State.WAITING)
        job = await do(store, job, c.SignalJob(actor=CONTROL, name="other"))
        job = await do(store, job, c.SignalJob(actor=CONTROL, name="go"))
        job = await do(store, job, c.Resume(actor=RECONCILER))

        assert (job.state, job.wait_for) == (State.QUEUED, None)
        assert job.run_at == job.updated_at
        assert [signal.name for signal in job.signals] == ["other"]
        assert (await claim_one(store, job.queue)).job.attempt == 2

    async def test_resume_by_the_clock(self, store: Store) -> None:
        job = await running_job(store)
        job = await do(store, job, c.Wait(actor=owner_of(job), signal="go", until=After(1)))
        now = await passed(store, job.run_at)
        job = await do(store, job, c.Resume(actor=RECONCILER, as_of=now))

        assert job.state is State.QUEUED
        assert (await last(store, job)).facts.timer

    @pytest.mark.req("B17", "C1")
    async def test_complete(self, store: Store) -> None:
        job = await running_job(store)
        job = await do(
            store,
            job,
            c.Complete(
                actor=owner_of(job),
                body=b'{"answer":42}',
                exit_code=0,
                result_ptr="s3://result",
                execution_ms=12,
            ),
        )

        assert (job.state, job.result_digest) == (State.SUCCEEDED, digest(b'{"answer":42}'))
        assert (job.exit_code, job.result_ptr) == (0, "s3://result")
        assert (job.owner, job.epoch, job.lease_expires_at) == (None, None, None)
        assert (job.timeout_at, job.error_code) == (None, None)
        assert job.finished_at == job.updated_at
        event = await last(store, job)
        assert (event.body, event.facts.execution_ms) == (b'{"answer":42}', 12)

    async def test_an_end_keeps_who_ran_it_and_what_was_kept_of_it(self, store: Store) -> None:
        left: dict[str, Any] = {
            "worker": "peer-7",
            "log": KeptOutput(digest="ab" * 32, bytes=50_000_000, truncated=True),
            "artifacts": KeptOutput(digest="cd" * 32, bytes=0),
        }
        ends: list[Callable[[Actor], c.Command]] = [
            lambda owner: c.Complete(actor=owner, **left),
            lambda owner: c.Fail(actor=owner, error_code="boom", **left),
            lambda owner: c.TimeOut(actor=owner, **left),
        ]
        for end in ends:
            job = await running_job(store, policy=Policy(timeout=HOUR))
            facts = (await last(store, await do(store, job, end(owner_of(job))))).facts
            assert {name: getattr(facts, name) for name in left} == left

    async def test_admission_and_denial_name_the_rules_they_followed(self, store: Store) -> None:
        by: dict[str, Any] = {"rule": "weekdays", "rules": "0f" * 16}
        for decision in (c.Admit(actor=SCHEDULER, **by), c.Deny(actor=SCHEDULER, **by)):
            job = await do(store, await job_in(store, State.PENDING), decision)
            facts = (await last(store, job)).facts
            assert (facts.rule, facts.rules) == ("weekdays", "0f" * 16)

    @pytest.mark.req("C1")
    async def test_null_is_a_result(self, store: Store) -> None:
        job = await running_job(store)
        job = await do(store, job, c.Complete(actor=owner_of(job), body=b"null"))

        assert job.result_digest == digest(b"null")
        assert (await last(store, job)).body == b"null"

    @pytest.mark.req("B17", "C1")
    async def test_fail(self, store: Store) -> None:
        job = await running_job(store)
        fail = c.Fail(actor=owner_of(job), error_code="boom", body=b'{"at":3}', exit_code=-1)
        job = await do(store, job, fail)

        assert (job.state, job.error_code, job.failures) == (State.FAILED, "boom", 1)
        assert (job.exit_code, job.letter, job.result_digest) == (-1, None, None)
        assert (await last(store, job)).body == b'{"at":3}'

    @pytest.mark.req("B31")
    async def test_a_policy_of_failing_may_still_write_a_dead_letter(self, store: Store) -> None:
        policy = Policy(on_exhausted="fail", letter_on_fail=True)
        job = await job_in(store, State.FAILED, policy=policy)

        assert (job.state, job.letter) == (State.FAILED, Letter.OPEN)

    async def test_lose_what_has_no_owner_left(self, store: Store) -> None:
        claimed = await claimed_job(store, policy=SHORT_CLAIM, owner="worker-7")
        running = await running_job(store, policy=SHORT_RUN, owner="worker-7")
        for job in (claimed, running):
            now = await passed(store, job.lease_expires_at)
            lost = await do(store, job, c.Lose(actor=RECONCILER, error_code="gone", as_of=now))

            assert (lost.state, lost.error_code, lost.failures) == (State.FAILED, "gone", 1)
            event = await last(store, lost)
            assert event.facts.last_owner == "worker-7"
            assert event.lease_expires_at == job.lease_expires_at

    async def test_lose_what_is_stalled(self, store: Store) -> None:
        job = await job_in(store, State.STALLED)
        lost = await do(store, job, c.Lose(actor=RECONCILER, error_code="gone", as_of=0))

        assert (lost.state, lost.failures) == (State.FAILED, job.failures)

    async def test_retry(self, store: Store) -> None:
        for state in (State.CLAIMED, State.RUNNING):
            job = await job_in(store, state)
            retry = c.Retry(actor=owner_of(job), error_code="boom", body=b'"x"', retry_in=HOUR)
            job = await do(store, job, retry)

            assert (job.state, job.failures, job.error_code) == (State.RETRYING, 1, None)
            assert (job.run_at, job.owner) == (job.updated_at + HOUR, None)
            event = await last(store, job)
            assert (event.facts.error_code, event.body) == ("boom", b'"x"')

    @pytest.mark.req("B10")
    async def test_retry_by_backoff(self, store: Store) -> None:
        policy = Policy(max_attempts=9, backoff_first=1000, backoff_factor=2.0, backoff_max=3000)
        job = await claimed_job(store, policy=policy)
        for delay in (1000, 2000, 3000):
            job = await do(store, job, c.Start(actor=owner_of(job)))
            boom = c.Retry(actor=owner_of(job), error_code="boom", jitter=1.0)
            job = await do(store, job, boom)
            assert job.run_at == job.updated_at + delay
            await passed(store, job.run_at)
            job = (await claim_one(store, job.queue)).job

    async def test_release(self, store: Store) -> None:
        for state in (State.CLAIMED, State.RUNNING):
            job = await job_in(store, state)
            job = await do(store, job, c.Release(actor=owner_of(job)))

            assert (job.state, job.failures, job.releases) == (State.STALLED, 0, 1)
            assert job.run_at == job.updated_at

    @pytest.mark.req("B9", "C5", "C12")
    async def test_stall_and_requeue(self, store: Store) -> None:
        job = await running_job(store, policy=SHORT_RUN, owner="worker-7")
        lease = job.lease_expires_at
        now = await passed(store, lease)
        job = await do(store, job, c.Stall(actor=RECONCILER, as_of=now, reason="silence"))
        assert (job.state, job.failures, job.owner) == (State.STALLED, 1, None)
        event = await last(store, job)
        assert (event.facts.last_owner, event.lease_expires_at) == ("worker-7", lease)
        job = await do(store, job, c.Requeue(actor=CONTROL, run_at=After(HOUR)))

        assert (job.state, job.run_at) == (State.QUEUED, job.updated_at + HOUR)

    async def test_request_cancel_softly_then_hard(self, store: Store) -> None:
        for state in (State.CLAIMED, State.RUNNING):
            job = await job_in(store, state)
            job = await do(store, job, c.RequestCancel(actor=CONTROL))
            assert (job.state, job.cancel_requested) == (state, CancelMode.SOFT)
            job = await do(store, job, c.RequestCancel(actor=CONTROL, mode=CancelMode.HARD))
            assert job.cancel_requested is CancelMode.HARD

    @pytest.mark.req("A18", "B17")
    async def test_cancel_what_nobody_holds(self, store: Store) -> None:
        for state in (
            State.PENDING,
            State.QUEUED,
            State.WAITING,
            State.RETRYING,
            State.STALLED,
        ):
            job = await do(store, await job_in(store, state), c.Cancel(actor=CONTROL))

            assert (job.state, job.error_code) == (State.CANCELLED, "cancelled")
            assert (await last(store, job)).facts.kill is None

    @pytest.mark.req("A18")
    async def test_cancel_by_the_owner_after_the_kill(self, store: Store) -> None:
        job = await running_job(store)
        job = await do(store, job, c.RequestCancel(actor=CONTROL))
        job = await do(store, job, c.Cancel(actor=owner_of(job), exit_code=137))

        assert (job.state, job.exit_code, job.owner) == (State.CANCELLED, 137, None)
        assert (await last(store, job)).facts.kill == "confirmed"

    @pytest.mark.req("A18")
    async def test_cancel_by_the_sweep_when_the_owner_was_lost(self, store: Store) -> None:
        job = await running_job(store, policy=SHORT_RUN, owner="worker-7")
        job = await do(store, job, c.RequestCancel(actor=CONTROL))
        now = await passed(store, job.lease_expires_at)
        job = await do(store, job, c.Stall(actor=RECONCILER, as_of=now))

        assert job.state is State.CANCELLED
        facts = (await last(store, job)).facts
        assert (facts.kill, facts.last_owner) == ("unconfirmed", "worker-7")

    @pytest.mark.req("A18")
    async def test_an_end_after_a_stall_records_that_the_kill_is_unconfirmed(
        self, store: Store
    ) -> None:
        for end in (
            c.Cancel(actor=CONTROL),
            c.DeadLetter(actor=RECONCILER, error_code="exhausted_retries", stage="exec"),
        ):
            job = await running_job(store, policy=SHORT_RUN, owner="worker-7")
            now = await passed(store, job.lease_expires_at)
            stalled = await do(store, job, c.Stall(actor=RECONCILER, as_of=now))
            ended = await do(store, stalled, end)

            assert (stalled.lost_owner, ended.lost_owner) == ("worker-7", "worker-7")
            facts = (await last(store, ended)).facts
            assert (facts.kill, facts.last_owner) == ("unconfirmed", "worker-7")
            assert await stored(store, ended.id) == ended

    async def test_a_claim_forgets_the_owner_that_was_lost(self, store: Store) -> None:
        job = await running_job(store, policy=SHORT_RUN, queue="work")
        now = await passed(store, job.lease_expires_at)
        await do(store, job, c.Stall(actor=RECONCILER, as_of=now))
        again = (await claim_one(store, "work", owner="worker-8")).job

        assert again.lost_owner is None
        assert await stored(store, again.id) == again

    async def test_time_out_by_the_owner(self, store: Store) -> None:
        for state in (State.CLAIMED, State.RUNNING):
            job = await job_in(store, state)
            job = await do(store, job, c.TimeOut(actor=owner_of(job), exit_code=137))

            assert (job.state, job.error_code) == (State.TIMED_OUT, "timeout")
            assert (job.exit_code, job.failures) == (137, 1)

    async def test_time_out_at_the_deadline(self, store: Store) -> None:
        for state in LIVE:
            job = await job_in(store, state, deadline_at=After(1))
            now = await passed(store, job.deadline_at)
            job = await do(store, job, c.TimeOut(actor=RECONCILER, as_of=now))

            assert (job.state, job.owner) == (State.TIMED_OUT, None)

    @pytest.mark.req("B17")
    async def test_dead_letter(self, store: Store) -> None:
        by_owner = await job_in(store, State.DEAD_LETTERED)
        by_scheduler = await do(
            store,
            await submit_one(store, admitted=False),
            c.DeadLetter(actor=SCHEDULER, error_code="parse_error", stage="input"),
        )

        assert (by_owner.error_code, by_owner.letter) == ("exhausted_retries", Letter.OPEN)
        assert (by_scheduler.error_code, by_scheduler.attempt) == ("parse_error", 0)
        assert (await last(store, by_scheduler)).facts.stage == "input"

    @pytest.mark.req("B9")
    async def test_dead_letter_what_was_lost_too_often(self, store: Store) -> None:
        job = await running_job(store, policy=Policy(max_attempts=1, heartbeat=1), owner="worker-7")
        now = await passed(store, job.lease_expires_at)
        job = await do(
            store,
            job,
            c.DeadLetter(
                actor=RECONCILER, error_code="infrastructure_failure", stage="exec", as_of=now
            ),
        )

        assert (job.state, job.failures) == (State.DEAD_LETTERED, 1)
        assert (await last(store, job)).facts.last_owner == "worker-7"

    async def test_signal_in_every_live_state(self, store: Store) -> None:
        for state in LIVE:
            job = await job_in(store, state)
            sent = await do(store, job, c.SignalJob(actor=CONTROL, name="go", body=b"[1]"))

            assert (sent.state, sent.lease_expires_at) == (state, job.lease_expires_at)
            assert sent.signals == (Signal("go", sent.rev),)
            assert (await last(store, sent)).body == b"[1]"

    @pytest.mark.req("A15", "C13")
    async def test_a_late_result_is_recorded_and_changes_nothing(self, store: Store) -> None:
        for state in TERMINAL:
            job = await job_in(store, state)
            late = c.LateResult(
                actor=worker("worker-8"), state="succeeded", body=b"7", result_ptr="s3://late"
            )
            after = await do(store, job, late)

            assert _outcome(after) == _outcome(job)
            assert after.late_results == ("0:worker-8",)
            assert (after.rev, after.result_ptr) == (job.rev + 1, job.result_ptr)
            assert (await last(store, after)).body == b"7"

    @pytest.mark.req("B17", "C13")
    async def test_annotations_change_no_outcome(self, store: Store) -> None:
        job = await job_in(store, State.DEAD_LETTERED)
        redrive = new_job(parent_id=job.id, link_kind=Link.REDRIVE)
        link = redrive.record.id
        after = await do(store, job, c.Compensated(actor=RECONCILER, link=job_ids.mint()))
        after = await do(store, after, c.Redriven(actor=CONTROL, link=link, submits=(redrive,)))
        assert (after.letter, (await last(store, after)).facts.link) == (Letter.REDRIVEN, link)
        assert (await stored(store, link)).parent_id == job.id
        again = c.Redriven(actor=CONTROL, link=job_ids.mint(), again=True)
        after = await do(store, after, again)

        assert (after.letter, after.rev) == (Letter.REDRIVEN, job.rev + 3)
        assert _outcome(after) == _outcome(job)
        other = await job_in(store, State.DEAD_LETTERED)
        put_away = await do(store, other, c.Discarded(actor=CONTROL))
        assert (put_away.letter, put_away.rev) == (Letter.DISCARDED, other.rev + 1)
        assert _outcome(put_away) == _outcome(other)

    @pytest.mark.req("C13")
    async def test_cleaning_moves_retention_alone(self, store: Store) -> None:
        for state in TERMINAL:
            job = await job_in(store, state)
            cleaning = await do(store, job, c.Clean(actor=JANITOR))
            cleaned = await do(store, cleaning, c.Cleaned(actor=JANITOR))

            assert cleaning.retention is Retention.CLEANING
            assert cleaned.retention is Retention.CLEANED
            assert _outcome(cleaned) == _outcome(job)

    @pytest.mark.req("C10", "B17", "E3")
    async def test_every_state_is_reached_and_kept(self, store: Store) -> None:
        jobs = {state: await job_in(store, state) for state in State if state is not State.UNKNOWN}

        read = await store.get([job.id for job in jobs.values()])
        assert [job.state for job in read if job] == list(jobs)
        for state, job in jobs.items():
            assert (await last(store, job)).to_state is state

    async def test_a_second_attempt_forgets_when_the_first_started(self, store: Store) -> None:
        first = await running_job(store, queue="work")
        stalled = await do(store, first, WAYS_OUT[State.STALLED](first))
        second = (await claim_one(store, "work")).job
        assert (stalled.started_at, second.started_at) == (first.started_at, None)
        again = await do(store, second, c.Start(actor=owner_of(second)))

        assert again.started_at == again.updated_at


def _outcome(job: Job) -> dict[str, object]:
    return {name: getattr(job, name) for name in BOUNDARY}
