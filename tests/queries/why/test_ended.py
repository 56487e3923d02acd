"""A job that has ended says how, by whom, and what became of its dead letter."""

from __future__ import annotations

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.states import Letter, Link, State
from holdfast.ports.store import Store
from holdfast.queries.why import reasons as r
from holdfast.queries.why.facts import Act
from holdfast.testing.factories import CONTROL, RECONCILER, SCHEDULER, SHORT_RUN, new_job, owner_of
from holdfast.testing.store_actions import do, job_in, passed, running_job
from holdfast.testing.store_actions import submit_one as submit
from tests.queries.why.acts import ERROR, ask


async def test_ended_with_a_result(store: Store) -> None:
    job = await job_in(store, State.SUCCEEDED)
    answer, reason = await ask(store, job, r.Ended)

    assert (reason.state, reason.at) == (State.SUCCEEDED, job.finished_at)
    assert reason.ended == Act(by="worker-1", at=job.updated_at)
    assert (reason.error_code, reason.error, reason.letter) == (None, None, None)
    assert answer.text.startswith("succeeded ")
    assert answer.text.endswith("by worker-1; after 1 attempt")


async def test_ended_with_an_error(store: Store) -> None:
    job = await running_job(store)
    fail = c.Fail(actor=owner_of(job), error_code="handler_error", body=ERROR)
    job = await do(store, job, fail)
    answer, reason = await ask(store, job, r.Ended)

    assert (reason.error_code, reason.error) == ("handler_error", "ValueError: boom")
    assert "; error handler_error: ValueError: boom; " in answer.text


async def test_ended_in_the_dead_letters(store: Store) -> None:
    job = await job_in(store, State.DEAD_LETTERED)
    answer, reason = await ask(store, job, r.Ended)

    assert (reason.letter, reason.stage) == (Letter.OPEN, "exec")
    assert "error exhausted_retries at stage exec: boom" in answer.text
    assert "its dead letter is open" in answer.text
    again = new_job(parent_id=job.id, link_kind=Link.REDRIVE)
    redriven = c.Redriven(actor=CONTROL, link=again.record.id, submits=(again,), reason="fixed")
    job = await do(store, job, redriven)
    answer, reason = await ask(store, job, r.Ended)
    assert (reason.letter, reason.redriven_as) == (Letter.REDRIVEN, str(again.record.id))
    assert reason.settled == Act(by="control:ann", at=job.updated_at, cause="fixed")
    assert f"its dead letter is redriven as {again.record.id}" in answer.text


async def test_cancelled_by_its_owner_says_who_asked_for_it(store: Store) -> None:
    job = await running_job(store)
    job = await do(store, job, c.RequestCancel(actor=CONTROL, reason="wrong input"))
    asked = Act(by="control:ann", at=job.updated_at, cause="wrong input")
    job = await do(store, job, c.Cancel(actor=owner_of(job)))
    answer, reason = await ask(store, job, r.Ended)

    assert reason.cancelled == asked
    assert reason.ended == Act(by="worker-1", at=job.updated_at)
    assert "by control:ann: wrong input" in answer.text


async def test_ended_without_proof_of_the_kill(store: Store) -> None:
    job = await running_job(store, policy=SHORT_RUN)
    await passed(store, job.lease_expires_at)
    job = await do(store, job, c.RequestCancel(actor=CONTROL))
    now = (await store.clock()).now
    job = await do(store, job, c.Cancel(actor=RECONCILER, as_of=now))
    answer, reason = await ask(store, job, r.Ended)

    assert (reason.kill, reason.last_owner) == ("unconfirmed", "worker-1")
    assert "its owner worker-1 was lost, so its kill is unconfirmed" in answer.text


async def test_cancelled_after_its_owner_was_lost_names_that_owner(store: Store) -> None:
    job = await running_job(store, policy=SHORT_RUN)
    now = await passed(store, job.lease_expires_at)
    job = await do(store, job, c.Stall(actor=RECONCILER, as_of=now))
    job = await do(store, job, c.Cancel(actor=CONTROL))
    answer, reason = await ask(store, job, r.Ended)

    assert (reason.kill, reason.last_owner) == ("unconfirmed", "worker-1")
    assert "its owner worker-1 was lost, so its kill is unconfirmed" in answer.text


async def test_denied_says_by_whom(store: Store) -> None:
    job = await submit(store, admitted=False)
    deny = c.Deny(actor=SCHEDULER, rule="no-prod", body=b'"not here"')
    answer, reason = await ask(store, await do(store, job, deny), r.Ended)

    assert reason.ended is not None
    assert (reason.ended.by, reason.rule) == ("scheduler:one", "no-prod")
    assert "; rule 'no-prod'; error denied: not here; after 0 attempts" in answer.text
