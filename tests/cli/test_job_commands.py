"""`holdfast ls`, `show`, `cancel` and `queues`, as a person and as a script use them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.runtime import BAD_INPUT, FOUND_PROBLEMS, REFUSED
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.payload import encode_body
from holdfast.lifecycle.record import Actor, Job
from holdfast.lifecycle.states import CancelMode, Link, Role, State
from holdfast.ports.store import Store
from holdfast.testing.factories import CONTROL, RECONCILER, SHORT_RUN, owner_of
from holdfast.testing.store_actions import (
    claim,
    claim_one,
    do,
    job_in,
    passed,
    running_job,
    stored,
    submit_one,
)
from tests.cli.commands import HOSTILE, answered, assert_harmless, dead, on, run
from tests.flow.families import child_of


@pytest.fixture
def place(tmp_path: Path) -> str:
    """Where a new SQLite file may be."""
    return str(tmp_path / "jobs.db")


async def _some(store: Store) -> None:
    await submit_one(store, queue="post", task="mail", job_id="waits", workflow_id="flow-1")
    await running_job(store, queue="work", task="print", job_id="runs", tenant="acme")
    await dead(store, queue="bank", task="mail", job_id="died", correlation_id="order-7")


def listed(place: str, *words: str) -> list[str]:
    page = answered(place, "ls", *words)
    return [job["id"] for job in page["jobs"]]


def test_jobs_are_listed_newest_first(place: str) -> None:
    on(place, _some)
    outcome = run(place, "ls")
    assert outcome.exit_code == 0, outcome.output
    title, *lines = outcome.stdout.splitlines()
    assert title.split()[:2] == ["JOB", "STATE"]
    assert [line.split()[:3] for line in lines] == [
        ["died", "dead_lettered", "mail"],
        ["runs", "running", "print"],
        ["waits", "queued", "mail"],
    ]


def test_a_job_is_named_by_the_first_digits_of_its_id(place: str) -> None:
    async def two(store: Store) -> list[str]:
        return [str((await submit_one(store)).id) for _ in range(2)]

    first, second = on(place, two)
    shared = next(n for n in range(36) if first[n] != second[n])
    assert answered(place, "show", first[: shared + 1])["job"]["id"] == first
    assert answered(place, "cancel", second[: shared + 1].replace("-", ""))["state"] == "cancelled"
    several = run(place, "why", first[:8])
    assert several.exit_code == BAD_INPUT
    assert first in several.stderr
    assert second in several.stderr
    assert run(place, "why", "0" * 8).exit_code == FOUND_PROBLEMS
    # A name of a submitter's own is never read as the start of an id.
    on(place, lambda store: submit_one(store, job_id=first[:8]))
    assert answered(place, "show", first[:8])["job"]["id"] == first[:8]


def test_labels_are_shown_and_jobs_are_listed_by_them(place: str) -> None:
    async def labelled(store: Store) -> None:
        await submit_one(store, job_id="red", labels={"colour": "red", "size": "l"})
        await submit_one(store, job_id="plain")

    on(place, labelled)
    assert "labels         colour=red, size=l" in run(place, "show", "red").stdout
    assert listed(place, "--label", "colour=red", "--label", "size=l") == ["red"]
    assert listed(place, "--label", "colour=blue") == []
    assert run(place, "ls", "--label", "colour").exit_code == BAD_INPUT


def test_every_name_of_a_label_can_be_filtered_by(place: str) -> None:
    on(place, lambda store: submit_one(store, job_id="equal", labels={"a": "b=c"}))
    assert listed(place, "--label", "a=b=c") == ["equal"]
    answer = run(place, "submit", "mail", "--label", "a=b=c", "--job-id", "other")
    assert answer.exit_code == 0
    assert listed(place, "--label", "a=b=c") == ["other", "equal"]


def test_jobs_are_narrowed_by_every_filter(place: str) -> None:
    on(place, _some)
    assert listed(place, "--state", "queued", "--state", "running") == ["runs", "waits"]
    assert listed(place, "--queue", "post") == ["waits"]
    assert listed(place, "--task", "mail") == ["died", "waits"]
    assert listed(place, "--tenant", "acme") == ["runs"]
    assert listed(place, "--error", "timeout") == ["died"]
    assert listed(place, "--workflow", "flow-1") == ["waits"]
    assert listed(place, "--correlation", "order-7") == ["died"]
    assert listed(place, "--since", "1h30m") == ["died", "runs", "waits"]
    assert listed(place, "--since", "5400") == ["died", "runs", "waits"], "plain seconds"
    assert listed(place, "--until", "20000101") == [], "eight digits are a date"
    assert run(place, "ls", "--until", "1h").stdout == "no such jobs\n"


def test_a_page_of_jobs_shows_how_to_continue(place: str) -> None:
    on(place, _some)
    outcome = run(place, "ls", "--limit", "2")
    assert outcome.stderr.startswith("more: --before ")
    assert listed(place, "--before", outcome.stderr.split()[-1]) == ["waits"]


@pytest.mark.parametrize(
    "line", ["ls --state lost", "ls --since soon", "ls --before 7", "ls --limit 1001", "ls --task="]
)
def test_a_bad_line_is_refused(place: str, line: str) -> None:
    on(place, _some)
    assert run(place, *line.split()).exit_code == BAD_INPUT


async def _lived(store: Store) -> Job:
    """Two attempts: the first failed and was tried again, the second was lost to a host."""
    body = b'{"type":"ValueError","message":"no","traceback":"Traceback\\nValueError: no"}'
    job = await running_job(store, queue="q", owner="worker-1", job_id="lived", trace_id="t-9")
    retry = c.Retry(actor=owner_of(job), error_code="unknown", body=body, retry_in=0)
    await do(store, job, retry)
    job = (await claim_one(store, "q", owner="worker-2")).job
    job = await do(store, job, c.Start(actor=owner_of(job)))
    for _ in range(3):
        job = await do(store, job, c.Heartbeat(actor=owner_of(job)))
    return await do(store, job, c.Adopt(actor=Actor(Role.HOST, "worker-3")))


def test_a_job_is_shown_with_attempts_events_and_error(place: str) -> None:
    on(place, _lived)
    outcome = run(place, "show", "lived")
    assert outcome.exit_code == 0, outcome.output
    facts, tries, events, error = outcome.stdout.strip().split("\n\n")
    assert "state          running" in facts
    assert "owner          worker-3" in facts
    assert "tries          1 of 6 failed" in facts
    assert [line.split()[:2] for line in tries.splitlines()[1:]] == [
        ["1", "worker-1"],
        ["2", "worker-3"],
    ]
    assert tries.splitlines()[1].endswith("job_retrying  ValueError: no")
    assert [line.split()[3] for line in events.splitlines()[1:-1]] == [
        "job_created", "job_claimed", "job_started", "job_retrying", "job_claimed", "job_started",
        "job_adopted",
    ]  # fmt: skip
    assert events.endswith("(3 more: heartbeats, and what --events leaves out)")
    assert error == "job_retrying: ValueError: no\n  Traceback\n  ValueError: no"


async def _lost_and_cancelled(store: Store) -> None:
    job = await running_job(store, queue="q", job_id="lost", policy=SHORT_RUN)
    now = await passed(store, job.lease_expires_at)
    job = await do(store, job, c.Stall(actor=RECONCILER, as_of=now))
    await do(store, job, c.Cancel(actor=CONTROL))


def test_a_job_cancelled_after_its_owner_was_lost_is_shown_with_the_missing_evidence(
    place: str,
) -> None:
    on(place, _lost_and_cancelled)
    shown = run(place, "show", "lost").stdout
    assert "lost owner     worker-1; kill: unconfirmed" in shown
    assert "kill unconfirmed" in shown
    assert (
        json.loads(run(place, "show", "lost", "--json").stdout)["job"]["lost_owner"] == "worker-1"
    )


async def _eventful(store: Store) -> None:
    job = await running_job(store, queue="q", job_id="busy", body=b'{"order": 7}')
    owner = owner_of(job)
    job = await do(store, job, c.Step(actor=owner, name="charge", use=1, body=b'"paid"'))
    job = await do(store, job, c.Step(actor=owner, name="charge", use=2, body=b'"paid"'))
    job = await do(store, job, c.Wait(actor=owner, signal="checked"))
    job = await do(store, job, c.SignalJob(actor=CONTROL, name="checked", body=b'"yes"'))
    await do(store, job, c.Resume(actor=CONTROL))
    job = (await claim_one(store, "q")).job
    job = await do(store, job, c.Start(actor=owner_of(job)))
    await do(store, job, c.Complete(actor=owner_of(job), body=b'{"parcel": 3}'))


def test_a_timeline_names_steps_and_signals_and_what_came_of_it(place: str) -> None:
    on(place, _eventful)
    facts, _, events = run(place, "show", "busy").stdout.strip().split("\n\n")
    assert 'arguments      {"order": 7}' in facts
    assert 'result         {"parcel": 3}' in facts
    answer = {line.split()[3]: line for line in events.splitlines()[1:]}
    assert answer["step_completed"].endswith("charge #2")
    assert answer["job_waiting"].endswith("for checked")
    assert answer["signal_received"].endswith("checked")


def test_a_job_answers_a_script_with_its_last_events(place: str) -> None:
    on(place, _lived)
    answer = answered(place, "show", "lived", "--events", "2")
    assert [event["type"] for event in answer["events"]] == ["job_started", "job_adopted"]
    assert [one["owner"] for one in answer["attempts"]] == ["worker-1", "worker-3"]
    assert (answer["job"]["state"], answer["job"]["id"]) == ("running", "lived")
    assert answered(place, "show", "lived", "--events", "0")["events"] == []


def test_a_job_is_found_by_its_internal_id_unless_another_tenant_is_named(place: str) -> None:
    job = on(place, lambda store: submit_one(store, tenant="acme"))
    assert run(place, "show", str(job.id), "--tenant", "acme").exit_code == 0
    assert run(place, "show", str(job.id)).exit_code == 0
    missing = run(place, "show", str(job.id), "--tenant", "default")
    assert (missing.exit_code, "no_such_job" in missing.output) == (FOUND_PROBLEMS, True)


@pytest.mark.req("A18")
def test_a_job_that_nobody_holds_is_cancelled_at_once(place: str) -> None:
    job = on(place, lambda store: submit_one(store, job_id="waits"))
    outcome = run(place, "cancel", "waits", "--reason", "not needed")
    assert (outcome.exit_code, outcome.stdout) == (0, "job waits is cancelled\n")
    assert run(place, "cancel", "waits").exit_code == 0
    events = on(place, lambda store: store.events(job.id))
    assert (len(events), events[-1].reason) == (2, "not needed")


@pytest.mark.req("A18")
def test_the_owner_of_a_running_job_is_asked_softly_or_hard(place: str) -> None:
    job = on(place, lambda store: running_job(store, job_id="runs"))
    outcome = run(place, "cancel", "runs")
    assert outcome.stdout == "cancel requested (soft); worker worker-1 will stop job runs\n"
    answer = answered(place, "cancel", "runs", "--hard")
    assert (answer["id"], answer["internal_id"]) == (job.public_id, str(job.id))
    assert (answer["state"], answer["cancel_requested"]) == ("running", "hard")
    assert on(place, lambda store: stored(store, job.id)).cancel_requested is CancelMode.HARD


def test_a_cancel_that_came_too_late_is_reported(place: str) -> None:
    on(place, lambda store: job_in(store, State.SUCCEEDED, job_id="done"))
    outcome = run(place, "cancel", "done")
    assert outcome.exit_code == REFUSED
    assert outcome.stderr == "job done has already ended: succeeded\n"
    assert answered(place, "cancel", "done", code=REFUSED)["state"] == "succeeded"


def test_a_hard_cancel_of_a_job_that_ended_shows_that_it_reached_its_children(place: str) -> None:
    parent = on(place, lambda store: job_in(store, State.FAILED, job_id="parent"))
    child = on(place, lambda store: child_of(store, parent))
    outcome = run(place, "cancel", "parent", "--hard")
    assert outcome.exit_code == REFUSED
    assert outcome.stderr == (
        "job parent has already ended: failed; its children that still run will be stopped\n"
    )
    assert on(place, lambda store: stored(store, child.id)).cancel_requested is CancelMode.HARD


def test_queues_are_listed_with_their_depth_by_state(place: str) -> None:
    on(place, _some)
    title, *lines = run(place, "queues", "list").stdout.splitlines()
    assert title.split() == ["QUEUE", "QUEUED", "RUNNING", "DEAD_LETTERED", "PAUSED"]
    assert [line.split() for line in lines] == [
        ["bank", "0", "0", "1", "–"],
        ["post", "1", "0", "0", "–"],
        ["work", "0", "1", "0", "–"],
    ]
    answer = answered(place, "queues", "list", "--tenant", "acme")
    assert answer == {"queues": [{"queue": "work", "jobs": {"running": 1}, "paused": False}]}


def test_an_empty_store_has_no_queues(place: str) -> None:
    run(place, "migrate")
    assert run(place, "queues", "list").stdout == "no queues yet\n"


def test_a_queue_is_paused_and_resumed_with_who_and_why(place: str) -> None:
    on(place, _some)
    outcome = run(place, "queues", "pause", "post", "--reason", "mail is down")
    assert (outcome.exit_code, outcome.stdout) == (0, "queue post is paused\n")
    assert run(place, "queues", "pause", "post").exit_code == 0
    assert on(place, lambda store: claim(store, "post")) == []
    [_, post, _] = answered(place, "queues", "list")["queues"]
    assert (post["paused"], post["reason"]) == (True, "mail is down")
    assert post["paused_by"].startswith("control:")
    assert "mail is down" in run(place, "queues", "list").stdout

    assert answered(place, "queues", "resume", "post") == {"queue": "post", "paused": False}
    events = on(place, lambda store: store.queue_events("post"))
    assert [event.type for event in events] == ["paused", "resumed"]


def test_hostile_text_cannot_speak_to_the_terminal(place: str) -> None:
    async def hostile(store: Store) -> None:
        names = dict.fromkeys(("task", "queue", "job_id", "correlation_id", "trace_id"), HOSTILE)
        job = await running_job(store, owner=HOSTILE, **names)
        body = encode_body(dict.fromkeys(("type", "message", "traceback"), HOSTILE))
        end = c.Fail(actor=owner_of(job), error_code=HOSTILE, body=body, reason=HOSTILE)
        await do(store, job, end)

    on(place, hostile)
    run(place, "queues", "pause", HOSTILE, "--reason", HOSTILE)
    for words in (["ls"], ["show", HOSTILE], ["cancel", HOSTILE], ["queues", "list"],
                  ["queues", "resume", HOSTILE], ["show", HOSTILE, "--tenant", HOSTILE],
                  ["ls", "--json"], ["show", HOSTILE, "--json"]):  # fmt: skip
        assert_harmless(run(place, *words).output)


async def _family(store: Store) -> None:
    top = await running_job(store, job_id="top", task="order")
    link: dict[str, Any] = {"link_kind": Link.CHILD, "parent_id": top.id}
    middle = await running_job(store, job_id="middle", task="ship", step_index=0, **link)
    await submit_one(store, job_id="other", task=HOSTILE, step_index=1, **link)
    await dead(store, job_id="leaf", task="pack", parent_id=middle.id, link_kind=Link.RETRY)


def test_a_family_is_drawn_as_a_tree(place: str) -> None:
    on(place, _family)
    outcome = run(place, "show", "top", "--tree")
    assert outcome.exit_code == 0, outcome.output
    lines = outcome.stdout.splitlines()
    assert lines[:3] == [
        "top  order  running",
        "├─ child 0: middle  ship  running",
        "│  └─ retry: leaf  pack  dead_lettered (timeout)",
    ]
    assert lines[3].startswith("└─ child 1: other  ")
    assert_harmless(outcome.stdout)


def test_a_job_in_the_middle_is_shown_with_its_line(place: str) -> None:
    on(place, _family)
    assert run(place, "show", "middle", "--tree").stdout.splitlines() == [
        "top  order  running",
        "   child 0: middle  ship  running  <",
        "   └─ retry: leaf  pack  dead_lettered (timeout)",
    ]


def test_a_tree_is_there_for_scripts_too(place: str) -> None:
    on(place, _family)
    shown = answered(place, "show", "middle", "--tree")
    assert [node["id"] for node in shown["above"]] == ["top"]
    assert shown["tree"]["below"][0]["link"] == "retry"
