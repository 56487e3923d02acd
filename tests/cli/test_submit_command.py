"""`holdfast submit`, as a person and as a script use it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from holdfast.cli.runtime import BAD_INPUT, FOUND_PROBLEMS, REFUSED
from holdfast.wiring import migrate, read_address
from tests.cli.commands import HOSTILE, answered, assert_harmless, run

UUID_4 = "1b4e28ba-2fa1-4d2b-883f-0016d3cca427"


@pytest.fixture
def place(tmp_path: Path) -> str:
    """An empty store."""
    place = str(tmp_path / "jobs.db")
    asyncio.run(migrate(read_address(place)))
    return place


def test_a_job_is_submitted_with_its_arguments_and_terms(place: str) -> None:
    made = run(
        place, "submit", "resize", "image=a=b.png", "width:=100", "--job-id", "j", "--queue=q"
    )
    assert made.stdout == "job j submitted to queue q\n"
    job = answered(place, "show", "j")
    assert job["events"][0]["payload"] == {"image": "a=b.png", "width": 100}
    again = run(
        place, "submit", "resize", "image=a=b.png", "width:=100", "--job-id", "j", "--queue=q"
    )
    assert again.stdout == "job j already exists (queued)\n"


def test_a_bad_wait_leaves_no_job_behind(place: str) -> None:
    refused = run(place, "submit", "t", "--wait", "soon")
    assert refused.exit_code == BAD_INPUT
    assert "--wait must be a span" in refused.stderr
    assert answered(place, "ls")["jobs"] == []


def test_a_wait_may_be_plain_seconds(place: str) -> None:
    waited = run(place, "submit", "t", "--wait", "0")
    assert waited.exit_code == FOUND_PROBLEMS
    assert "result_timeout" in waited.stderr


def test_every_option_reaches_the_job(place: str) -> None:
    answered(place, "submit", "other", "--job-id", "p")
    line = (
        'submit t --args {"a":[1]} b=2 --priority batch --needs gpu,disk --run-at 2030-01-01T10:00 '
        "--deadline 5000d --retries 2 --timeout 5m --request-id r --dedupe-key k --unique-live "
        f"--client-job-id {UUID_4} "
        "--parent p --correlation c --label x=y --label z= --tenant default --job-id j"
    )
    made = answered(place, *line.split())
    shown = answered(place, "show", "j")
    job, first = shown["job"], shown["events"][0]
    assert first["payload"] == {"a": [1], "b": "2"}
    assert (job["priority"], sorted(job["needs"])) == ("batch", ["disk", "gpu"])
    assert job["run_at"] == "2030-01-01T10:00:00Z"
    assert (job["policy"]["max_attempts"], job["policy"]["timeout"]) == (3, "300s")
    assert (first["request_id"], first["correlation_id"]) == ("r", "c")
    assert job["parent_id"] == answered(place, "show", "p")["job"]["internal_id"]
    assert job["deadline_at"] is not None
    again = answered(place, "submit", "t", "a=other", "--client-job-id", UUID_4)
    assert (again["job_id"], again["created"]) == (made["job_id"], False)


@pytest.mark.parametrize(
    "line",
    [
        "submit t a",
        "submit t =1",
        "submit t :=1",
        "submit t a:={",
        "submit t a=1 a=2",
        "submit t --args [1]",
        'submit t a=1 --args {"a":2}',
        "submit t --delay soon",
        "submit t --run-at soon",
        "submit t --priority high",
        "submit t --label x",
        "submit t --unique-live",
        "submit t --delay 1h --run-at 2030-01-01",
        "submit t --wait soon",
        "submit t --client-job-id 7",
    ],
)
def test_a_bad_line_is_refused(place: str, line: str) -> None:
    assert run(place, *line.split()).exit_code == BAD_INPUT
    if "--wait" not in line:
        assert answered(place, "ls")["jobs"] == []


def test_a_key_that_is_taken_is_refused(place: str) -> None:
    assert run(place, "submit", "t", "a=1", "--job-id", "j").exit_code == 0
    refused = run(place, "submit", "t", "a=2", "--job-id", "j")
    assert (refused.exit_code, "key_conflict" in refused.output) == (REFUSED, True)


def test_a_result_may_be_waited_for(place: str) -> None:
    assert run(place, "submit", "t", "--job-id", "j").exit_code == 0
    late = run(place, "submit", "t", "--job-id", "j", "--wait", "10ms")
    assert (late.exit_code, "result_timeout" in late.output) == (FOUND_PROBLEMS, True)
    assert run(place, "cancel", "j", "--reason", HOSTILE).exit_code == 0
    ended = run(place, "submit", "t", "--job-id", "j", "--wait", "10s")
    assert ended.exit_code == FOUND_PROBLEMS
    assert_harmless(ended.output)
    answer = answered(place, "submit", "t", "--job-id", "j", "--wait", "10s", code=FOUND_PROBLEMS)
    assert (answer["state"], answer["error_code"]) == ("cancelled", "cancelled")
