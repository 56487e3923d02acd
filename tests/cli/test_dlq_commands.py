"""`holdfast dlq`, as a person and as a script use it."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from holdfast.cli.runtime import BAD_INPUT, FOUND_PROBLEMS, REFUSED, STORE_FAILED
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Job
from holdfast.lifecycle.states import Letter, Link, State
from holdfast.ports.store import Store
from holdfast.testing.factories import JANITOR
from holdfast.testing.store_actions import all_jobs, do, job_in, stored
from tests.cli.commands import HOSTILE, answered, assert_harmless, dead, on, run


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with three dead letters in two queues, the newest first when listed."""
    path = tmp_path_factory.mktemp("filled") / "jobs.db"
    on(str(path), _fill)
    return path


@pytest.fixture
def place(filled: Path, tmp_path: Path) -> str:
    """A copy of it for each test."""
    return str(shutil.copy(filled, tmp_path))


async def _fill(store: Store) -> None:
    await dead(store, queue="post", task="mail", job_id="first", correlation_id="order-7")
    await dead(store, queue="post", task="print", job_id="second", code="exhausted_retries")
    await dead(store, queue="bank", task="mail", job_id="third", tenant="acme")


def letters(place: str) -> dict[str, Letter | None]:
    """What became of each letter."""
    jobs = on(place, all_jobs)
    return {job.public_id: job.letter for job in jobs if job.letter is not None}


def successors(place: str) -> list[Job]:
    return [job for job in on(place, all_jobs) if job.link_kind is Link.REDRIVE]


def listed(place: str, *words: str) -> list[str]:
    page = answered(place, "dlq", "list", *words)
    assert page["unreadable"] == {}
    return [letter["id"] for letter in page["letters"]]


def test_letters_are_listed_with_what_matters(place: str) -> None:
    outcome = run(place, "dlq", "list")
    assert outcome.exit_code == 0, outcome.output
    title, third, second, first = outcome.stdout.splitlines()
    assert title.split()[:3] == ["JOB", "REASON", "STAGE"]
    assert first.split()[:6] == ["first", "timeout", "exec", "mail", "post", "1"]
    assert [line.split()[0] for line in (third, second)] == ["third", "second"]
    assert first.endswith("ValueError: no")


def test_letters_are_narrowed_by_every_filter(place: str) -> None:
    assert listed(place) == ["third", "second", "first"]
    assert listed(place, "--queue", "post") == ["second", "first"]
    assert listed(place, "--task", "mail") == ["third", "first"]
    assert listed(place, "--tenant", "acme") == ["third"]
    assert listed(place, "--reason", "timeout", "--tenant", "default") == ["first"]
    assert listed(place, "--since", "1h") == ["third", "second", "first"]
    assert listed(place, "--until", "1h") == []
    assert listed(place, "--since", "2020-01-01", "--until", "2020-01-02T10:00+02:00") == []
    assert listed(place, "--state", "discarded") == []
    assert run(place, "dlq", "list", "--queue", "none").stdout == "no open letters\n"


def test_pages_follow_each_other(place: str) -> None:
    outcome = run(place, "dlq", "list", "--limit", "2")
    cursor = outcome.stderr.split()[-1]
    assert outcome.stderr.startswith("more: --before ")
    assert listed(place, "--limit", "2", "--before", cursor) == ["first"]


def test_a_letter_is_shown_with_its_traceback(place: str) -> None:
    outcome = run(place, "dlq", "show", "first")
    assert outcome.exit_code == 0
    answer = dict(line.split(maxsplit=1) for line in outcome.stdout.splitlines()[:4])
    assert (answer["job"], answer["task"], answer["queue"]) == ("first", "mail", "post")
    assert "timeout at stage exec" in outcome.stdout
    assert "worker-1" in outcome.stdout
    assert "order-7" in outcome.stdout
    assert outcome.stdout.endswith("  Traceback\n      at line 7\n  ValueError: no\n")


def test_a_letter_answers_a_script_in_json(place: str) -> None:
    letter = answered(place, "dlq", "show", "first")
    assert (letter["reason_code"], letter["stage"], letter["letter"]) == ("timeout", "exec", "open")
    assert letter["last_error"]["traceback"].startswith("Traceback")
    assert datetime.fromisoformat(letter["last_lease_expires_at"]).tzinfo is UTC


def test_one_letter_is_redriven_once(place: str) -> None:
    words = ("dlq", "redrive", "first", "--to-queue", "slow", "--retries", "9", "--delay", "1h")
    answer = answered(place, *words)
    again = run(place, "dlq", "redrive", "first")
    resumes = "resuming from its recorded steps"
    assert again.stdout == f"job first redriven as {answer['id']}, {resumes}\n"
    [new] = successors(place)
    assert (new.queue, new.policy.max_attempts) == ("slow", 10)
    assert new.run_at == new.created_at + 3_600_000_000
    assert letters(place)["first"] is Letter.REDRIVEN


def test_a_letter_is_redriven_again_only_when_asked_to(place: str) -> None:
    run(place, "dlq", "discard", "first", "--note", "known")
    refused = run(place, "dlq", "redrive", "first")
    assert (refused.exit_code, "letter_discarded" in refused.output) == (REFUSED, True)
    for _ in range(2):
        words = ("dlq", "redrive", "first", "--again", "--request-id", "r-1")
        assert run(place, *words).exit_code == 0
    assert len(successors(place)) == 1


def test_one_letter_is_discarded(place: str) -> None:
    assert answered(place, "dlq", "discard", "third", "--tenant", "acme")["letter"] == "discarded"
    outcome = run(place, "dlq", "discard", "first")
    assert outcome.stdout == "the letter of job first is discarded\n"
    assert listed(place) == ["second"]


def test_a_dry_run_shows_the_number_and_does_nothing(place: str) -> None:
    outcome = run(place, "dlq", "redrive", "--all", "--queue", "post", "--dry-run")
    assert (outcome.exit_code, outcome.stdout) == (0, "would redrive 2 dead letters\n")
    answer = answered(place, "dlq", "discard", "--all", "--dry-run", "--limit", "1")
    assert answer == {"would": "discard", "letters": 1}
    assert set(letters(place).values()) == {Letter.OPEN}


def test_many_letters_are_settled_after_a_yes(place: str) -> None:
    outcome = run(place, "dlq", "redrive", "--all", "--queue", "post", answer="y\n")
    assert outcome.exit_code == 0, outcome.output
    assert "redrive 2 dead letters?" in outcome.stderr
    assert outcome.stdout.endswith("2 redriven\n")
    assert len(successors(place)) == 2
    assert letters(place)["third"] is Letter.OPEN


@pytest.mark.parametrize("answer", ["n\n", "", None], ids=["no", "end of input", "nothing"])
def test_without_a_yes_nothing_is_done(place: str, answer: str | None) -> None:
    outcome = run(place, "dlq", "discard", "--all", answer=answer)
    assert outcome.exit_code == BAD_INPUT
    assert "nothing was done" in outcome.stderr
    assert set(letters(place).values()) == {Letter.OPEN}


def test_where_there_is_nothing_to_do_nobody_is_asked(place: str) -> None:
    outcome = run(place, "dlq", "discard", "--all", "--queue", "none")
    assert (outcome.exit_code, outcome.output) == (0, "0 discarded\n")


def test_a_script_confirms_beforehand_and_gets_a_report(place: str) -> None:
    report = answered(place, "dlq", "discard", "--all", "--yes", "--limit", "2")
    assert report == {"seen": 2, "done": 2, "skipped": 0, "failures": 0, "failed": {}}
    assert letters(place) == {
        "first": Letter.OPEN,
        "second": Letter.DISCARDED,
        "third": Letter.DISCARDED,
    }


async def _clean_second(store: Store) -> None:
    for job in await all_jobs(store):
        if job.public_id == "second":
            job = await do(store, job, c.Clean(actor=JANITOR))  # noqa: PLW2901 - the same job
            await do(store, job, c.Cleaned(actor=JANITOR))
            await store.erase_bodies([job.id])


def test_one_that_fails_is_named_and_the_others_are_done(place: str) -> None:
    on(place, _clean_second)
    outcome = run(place, "dlq", "redrive", "--all", "--yes")
    assert outcome.exit_code == FOUND_PROBLEMS
    assert outcome.stdout == "2 redriven, 1 failed\n"
    assert "the request of job second is erased" in outcome.stderr
    refused = run(place, "dlq", "redrive", "second")
    assert (refused.exit_code, "body_erased" in refused.output) == (REFUSED, True)


BAD_LINES = [
    "dlq redrive",
    "dlq redrive first --all",
    "dlq redrive first --queue post",
    "dlq redrive first --dry-run",
    "dlq discard first --limit 3",
    "dlq redrive --all --yes --again",
    "dlq redrive first --delay soon",
    "dlq redrive first --to-queue=",
    "dlq discard",
    "dlq list --state lost",
    "dlq list --since yesterday",
    "dlq list --before first",
    "dlq list --queue=",
    "dlq list --limit 0",
]


@pytest.mark.parametrize("line", BAD_LINES)
def test_a_bad_line_is_refused_and_nothing_is_done(place: str, line: str) -> None:
    assert run(place, *line.split()).exit_code == BAD_INPUT
    assert set(letters(place).values()) == {Letter.OPEN}


def test_what_is_not_there_or_not_dead_is_reported_by_its_code(place: str) -> None:
    on(place, lambda store: job_in(store, State.QUEUED, job_id="alive"))
    for words in (("show",), ("redrive",), ("discard",)):
        missing = run(place, "dlq", *words, "nobody")
        assert (missing.exit_code, "no_such_job" in missing.output) == (FOUND_PROBLEMS, True)
        # A job of another tenant is nobody's here.
        assert run(place, "dlq", *words, "third").exit_code == FOUND_PROBLEMS
        alive = run(place, "dlq", *words, "alive")
        assert (alive.exit_code, "no_dead_letter" in alive.output) == (REFUSED, True)


def test_a_store_that_is_not_there_is_reported(tmp_path: Path) -> None:
    outcome = run(str(tmp_path / "none.db"), "dlq", "list")
    assert (outcome.exit_code, "no_such_store" in outcome.output) == (STORE_FAILED, True)


async def _hostile(store: Store) -> Job:
    return await dead(
        store, task=HOSTILE, queue=HOSTILE, tenant=HOSTILE, job_id=HOSTILE, correlation_id=HOSTILE
    )


def test_hostile_text_cannot_speak_to_the_terminal(place: str) -> None:
    job = on(place, _hostile)
    name = ("--tenant", HOSTILE)
    assert_harmless(run(place, "dlq", "list").output)
    assert_harmless(run(place, "dlq", "show", str(job.id), *name).output)
    assert_harmless(run(place, "dlq", "show", HOSTILE).output)
    assert_harmless(run(place, "dlq", "redrive", HOSTILE, *name).output)
    assert_harmless(run(place, "dlq", "discard", HOSTILE, *name).output)
    assert_harmless(run(place, "dlq", "list", "--json", "--state", "redriven").output)
    assert (on(place, lambda store: stored(store, job.id))).letter is Letter.REDRIVEN
