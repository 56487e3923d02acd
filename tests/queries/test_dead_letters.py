"""What a dead letter says (B14 to B16), of every way in which a job can die."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import NoSuchJob, Refused
from holdfast.flow.command import perform
from holdfast.flow.recover import sweep
from holdfast.ids import mint_id
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.record import Job, JobId
from holdfast.lifecycle.retry import REASONS, STAGES
from holdfast.lifecycle.states import Letter, State
from holdfast.ports.store import Store
from holdfast.queries.dead_letters import (
    DeadLetterView,
    LetterFilter,
    count_letters,
    list_letters,
    read_letter,
)
from holdfast.testing.factories import (
    CONTROL,
    JANITOR,
    RECONCILER,
    SCHEDULER,
    SHORT_CLAIM,
    SHORT_RUN,
    owner_of,
    worker,
)
from holdfast.testing.store_actions import claim_one, claimed_job, do, job_in, passed, running_job

ERROR = b'{"type":"ValueError","message":"no","code":"unknown","traceback":"Traceback"}'


@pytest.fixture
def store(either_store: Store) -> Store:
    """Both engines."""
    return either_store


async def dead(store: Store, **wishes: Any) -> Job:
    """A job that its owner gave up."""
    code = wishes.pop("error_code", "exhausted_retries")
    job = await running_job(store, owner="worker-7", **wishes)
    end = c.DeadLetter(actor=owner_of(job), error_code=code, stage="output", body=ERROR)
    return await do(store, job, end)


async def lost(store: Store, policy: Policy, **wishes: Any) -> Job:
    """A job whose lease has passed and which a sweep has judged."""
    job = await running_job(store, owner="worker-8", policy=policy, **wishes)
    await passed(store, job.lease_expires_at)
    await sweep(store, RECONCILER, jitter=lambda: 0.0)
    [job_now] = await store.get([job.id])
    assert job_now is not None
    return job_now


@pytest.mark.req("B14", "B15", "B16")
async def test_a_letter_says_why_where_and_after_what(store: Store) -> None:
    job = await dead(store, task="mail", tenant="acme", queue="post", correlation_id="order-7")

    letter = await read_letter(store, job.id)
    assert letter == DeadLetterView(
        id=job.id,
        job_id=str(job.id),
        task="mail",
        queue="post",
        tenant="acme",
        state=State.DEAD_LETTERED,
        letter=Letter.OPEN,
        reason_code="exhausted_retries",
        stage="output",
        error_code="exhausted_retries",
        last_error={
            "type": "ValueError", "message": "no", "code": "unknown", "traceback": "Traceback",
        },
        attempts=1,
        failures=1,
        last_owner="worker-7",
        last_lease_expires_at=(await store.events(job.id))[2].lease_expires_at,
        correlation_id="order-7",
        created_at=job.created_at,
        dead_at=job.finished_at or 0,
        settled_at=None,
        settled_by=None,
        redriven_as=None,
        retention=job.retention,
    )  # fmt: skip


@pytest.mark.req("B9", "B11", "B15")
async def test_a_job_whose_last_lease_ran_out_names_the_owner_that_fell_silent(
    store: Store,
) -> None:
    job = await lost(store, Policy(max_attempts=1, heartbeat=1))

    letter = await read_letter(store, job.id)
    assert (job.state, job.letter) == (State.DEAD_LETTERED, Letter.OPEN)
    assert (letter.reason_code, letter.stage) == ("exhausted_retries", "exec")
    assert letter.last_owner == "worker-8"
    assert letter.last_lease_expires_at == (await store.events(job.id))[2].lease_expires_at
    assert letter.last_error == {"message": "lease expired", "code": "exhausted_retries"}


@pytest.mark.req("B9")
async def test_a_lost_lease_with_tries_left_makes_no_letter(store: Store) -> None:
    job = await lost(store, SHORT_RUN)

    assert (job.state, job.letter) == (State.STALLED, None)
    with pytest.raises(Refused, match="has no dead letter"):
        await read_letter(store, job.id)


@pytest.mark.req("B15", "B31")
async def test_a_failed_job_has_a_letter_only_where_its_policy_says_so(store: Store) -> None:
    for policy, letter in ((Policy(letter_on_fail=True), Letter.OPEN), (Policy(), None)):
        job = await running_job(store, policy=policy)
        failed = await do(store, job, c.Fail(actor=owner_of(job), error_code="permanent"))
        assert failed.letter is letter

    [listed] = (await list_letters(store, LetterFilter())).letters
    assert (listed.state, listed.letter) == (State.FAILED, Letter.OPEN)


@pytest.mark.req("B15", "B31")
async def test_the_letter_of_a_failed_job_has_every_field_of_another(store: Store) -> None:
    job = await running_job(store, owner="worker-7", policy=Policy(letter_on_fail=True))
    await do(store, job, c.Fail(actor=owner_of(job), error_code="permanent", body=ERROR))

    letter = await read_letter(store, job.id)
    assert (letter.reason_code, letter.stage) == ("permanent", "exec")
    assert (letter.last_owner, letter.attempts, letter.failures) == ("worker-7", 1, 1)
    assert letter.last_error["message"] == "no"
    assert letter.last_lease_expires_at == job.lease_expires_at


@pytest.mark.req("B15")
async def test_a_job_that_died_between_two_attempts_names_its_last_owner(store: Store) -> None:
    job = await running_job(store, queue="q", owner="worker-1")
    job = await do(store, job, c.Retry(actor=owner_of(job), error_code="boom", retry_in=0))
    job = (await claim_one(store, "q", owner="worker-2")).job
    lease = job.lease_expires_at
    job = await do(store, job, c.Release(actor=owner_of(job)))
    gone = c.DeadLetter(actor=SCHEDULER, error_code="dependency_unavailable", stage="fetch")
    await do(store, job, gone)

    letter = await read_letter(store, job.id)
    assert (letter.last_owner, letter.last_lease_expires_at) == ("worker-2", lease)
    assert (letter.reason_code, letter.stage) == ("dependency_unavailable", "fetch")


async def test_a_job_that_nobody_ever_held_has_no_last_owner(store: Store) -> None:
    job = await job_in(store, State.QUEUED)
    bad = c.DeadLetter(actor=SCHEDULER, error_code="parse_error", stage="input")
    await do(store, job, bad)

    letter = await read_letter(store, job.id)
    assert (letter.last_owner, letter.last_lease_expires_at, letter.attempts) == (None, None, 0)


async def _denied(store: Store) -> Job:
    job = await job_in(store, State.PENDING, correlation_id="order-7")
    return await do(store, job, c.Deny(actor=SCHEDULER, rule="no-prod"))


async def _timed_out_running(store: Store) -> Job:
    job = await running_job(store, correlation_id="order-7")
    return await do(store, job, c.TimeOut(actor=owner_of(job)))


async def _timed_out_waiting(store: Store) -> Job:
    job = await running_job(store, correlation_id="order-7", deadline_at=1_000_000_000_000_000)
    job = await do(store, job, c.Wait(actor=owner_of(job), signal="go"))
    return await do(store, job, c.TimeOut(actor=RECONCILER, as_of=job.deadline_at))


async def _lost_before_it_ran(store: Store) -> Job:
    job = await claimed_job(store, policy=SHORT_CLAIM, correlation_id="order-7")
    now = await passed(store, job.lease_expires_at)
    return await do(store, job, c.Lose(actor=RECONCILER, as_of=now, error_code="gone"))


DEAD_IN_B: list[Any] = [
    (_denied, ("policy_violation", "input", None, "denied by rule no-prod")),
    (_timed_out_running, ("timeout", "exec", "worker-1", "timeout")),
    (_timed_out_waiting, ("timeout", "exec", "worker-1", "timeout")),
    (_lost_before_it_ran, ("infrastructure_failure", "fetch", "worker-1", "gone")),
]


@pytest.mark.req("B14", "B15", "B16")
@pytest.mark.parametrize(
    ("arrange", "told"), DEAD_IN_B, ids=[arrange.__name__[1:] for arrange, _ in DEAD_IN_B]
)
async def test_what_only_seed_b_calls_dead_tells_the_same_fields(
    store: Store, arrange: Any, told: tuple[str, str, str | None, str]
) -> None:
    job = await arrange(store)

    letter = await read_letter(store, job.id)
    message = letter.last_error["message"]
    assert (letter.reason_code, letter.stage, letter.last_owner, message) == told
    assert (letter.letter, letter.correlation_id) == (None, "order-7")
    assert letter.reason_code in REASONS
    assert letter.stage in STAGES
    assert (letter.last_lease_expires_at is None) == (letter.last_owner is None)
    assert letter.dead_at == job.finished_at


@pytest.mark.parametrize("state", [State.QUEUED, State.SUCCEEDED, State.CANCELLED, State.FAILED])
async def test_what_is_not_dead_has_no_letter(store: Store, state: State) -> None:
    job = await job_in(store, state)

    with pytest.raises(Refused) as caught:
        await read_letter(store, job.id)
    assert caught.value.code == "no_dead_letter"


async def test_a_letter_of_no_job_is_an_error(store: Store) -> None:
    with pytest.raises(NoSuchJob):
        await read_letter(store, mint_id())


async def test_notes_after_the_end_do_not_hide_it(store: Store) -> None:
    job = await dead(store)
    for number in range(5):
        late = c.LateResult(actor=worker(f"late-{number}"), state="SUCCEEDED", body=b"1")
        job = await do(store, job, late)
    await perform(store, job.id, c.Discarded(actor=CONTROL))

    letter = await read_letter(store, job.id)
    assert (letter.last_error["message"], letter.last_owner) == ("no", "worker-7")
    assert (letter.letter, letter.settled_by) == (Letter.DISCARDED, "control:ann")
    assert letter.settled_at is not None
    assert letter.settled_at > letter.dead_at


async def test_an_erased_error_is_said_to_be_erased(store: Store) -> None:
    job = await dead(store)
    job = await do(store, job, c.Clean(actor=JANITOR))
    job = await do(store, job, c.Cleaned(actor=JANITOR))
    await store.erase_bodies([job.id])

    letter = await read_letter(store, job.id)
    assert letter.last_error == {"message": "erased by retention", "code": "exhausted_retries"}
    assert letter.last_owner == "worker-7"


async def test_an_error_that_is_no_object_is_told_as_its_message(store: Store) -> None:
    job = await running_job(store)
    await do(store, job, c.DeadLetter(
        actor=owner_of(job), error_code="timeout", stage="exec", body=b"[1]"
    ))  # fmt: skip

    assert (await read_letter(store, job.id)).last_error == {"message": "[1]", "code": "timeout"}


async def listed(store: Store, **wishes: Any) -> list[JobId]:
    page = await list_letters(store, LetterFilter(**wishes))
    assert page.unreadable == {}
    return [letter.id for letter in page.letters]


@pytest.mark.req("B14")
async def test_letters_are_found_by_what_they_are_of(store: Store) -> None:
    mail = await dead(store, queue="post", task="mail", tenant="acme")
    late = await dead(store, queue="post", task="print", error_code="timeout")
    other = await dead(store, queue="bank", task="print")

    assert await listed(store) == [other.id, late.id, mail.id]
    assert await listed(store, queue="post") == [late.id, mail.id]
    assert await listed(store, task="print") == [other.id, late.id]
    assert await listed(store, tenant="acme") == [mail.id]
    assert await listed(store, error_code="timeout") == [late.id]
    assert await listed(store, created_from=late.created_at) == [other.id, late.id]
    assert await listed(store, created_until=late.created_at) == [mail.id]
    assert await listed(store, queue="post", error_code="timeout", tenant="acme") == []


async def test_letters_are_found_by_what_became_of_them(store: Store) -> None:
    still_open, put_away = await dead(store), await dead(store)
    await perform(store, put_away.id, c.Discarded(actor=CONTROL))

    assert await listed(store) == [still_open.id]
    assert await listed(store, letter=Letter.DISCARDED) == [put_away.id]
    assert await listed(store, letter=Letter.REDRIVEN) == []
    assert await count_letters(store, LetterFilter()) == 1


async def test_pages_follow_each_other_whatever_is_settled_in_between(store: Store) -> None:
    jobs = [await dead(store) for _ in range(5)]
    newest_first = [job.id for job in jobs[::-1]]

    first = await list_letters(store, LetterFilter(), limit=2)
    await perform(store, newest_first[0], c.Discarded(actor=CONTROL))
    await dead(store)
    second = await list_letters(store, LetterFilter(), before=first.next, limit=2)
    third = await list_letters(store, LetterFilter(), before=second.next, limit=2)
    pages = [[one.id for one in page.letters] for page in (first, second, third)]
    assert pages == [newest_first[:2], newest_first[2:4], newest_first[4:]]
    assert third.next is None


@pytest.mark.req("B14", "B16")
def test_the_page_about_dead_letters_has_a_line_for_every_reason_and_stage() -> None:
    page = Path(__file__).parents[2].joinpath("docs", "dead-letters.md").read_text("utf-8")
    lines = {line.split("`")[1] for line in page.splitlines() if line.startswith("| `")}
    assert lines == REASONS | STAGES
