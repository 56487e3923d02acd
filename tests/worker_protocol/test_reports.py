"""What a worker says of its jobs, and what the ledger makes of it."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from holdfast.errors import PermanentError
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.times import SECOND
from holdfast.ports.store import Store
from holdfast.testing.store_actions import submit_one
from tests.worker_protocol.hand import Hand, events, read, said, submitted

BOOM = {"message": "the printer is on fire", "type": "PrinterError", "traceback": "at print.js:7"}


async def test_a_job_lives_its_whole_life_over_the_protocol(
    http: httpx.AsyncClient, hand: Hand
) -> None:
    await submitted(
        http, args={"amount": 7}, labels={"of": "ann"}, env={"A": "b"}, correlation_id="c-1"
    )
    job = await hand.claim_one()
    assert (job["task"], job["args"], job["attempt"], job["recall"]) == (
        "charge",
        {"amount": 7},
        1,
        False,
    )
    assert (job["labels"], job["env"], job["correlation_id"]) == ({"of": "ann"}, {"A": "b"}, "c-1")
    assert job["token"] == f"{job['id']}/1/1"

    for word, more in (
        ("start", {}),
        ("heartbeat", {}),
        ("step", {"name": "reserve", "result": {"seat": 3}}),
        ("progress", {"progress": 0.5}),
    ):
        answer = await hand.say(job, word, **more)
        assert (answer["accepted"], answer["held"], answer["state"]) == (True, True, "running")
    end = await hand.say(job, "complete", result=[1, 2])

    assert (end["accepted"], end["held"], end["state"]) == (True, False, "succeeded")
    assert await events(http, job) == [
        "job_created",
        "job_claimed",
        "job_started",
        "job_lease_renewed",
        "step_completed",
        "job_progressed",
        "job_succeeded",
    ]
    result = await http.get(f"/v1/jobs/{job['id']}/result")
    assert result.json()["result"] == [1, 2]


@pytest.mark.req("B5", "C6")
async def test_a_step_said_again_after_hundreds_of_others_is_recorded_once(
    http: httpx.AsyncClient, hand: Hand, store: Store
) -> None:
    await submitted(http)
    job = await hand.started()
    steps = [said(job, "step", name=f"step {number % 7}", use=number) for number in range(1, 301)]
    assert all(one["accepted"] for one in await hand.report(*steps))
    for step in (steps[0], steps[149], steps[-1]):
        [again] = await hand.report(step)
        assert (again["accepted"], again["repeated"]) == (True, True)
    [other] = await hand.report({**steps[0], "result": "another"})
    assert (other["accepted"], other["problem"]["code"]) == (False, "step_recorded")

    recorded = [name for name in await events(http, job) if name == "step_completed"]
    assert len(recorded) == len(steps)


@pytest.mark.req("B23")
async def test_trace_and_correlation_reach_the_worker(http: httpx.AsyncClient, hand: Hand) -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    await submitted(http, traceparent=trace, correlation_id="c-9", env={"A": "b"})
    job = await hand.claim_one()

    assert (job["traceparent"], job["correlation_id"], job["env"]) == (trace, "c-9", {"A": "b"})


async def test_many_reports_on_many_jobs_are_each_answered(
    http: httpx.AsyncClient, hand: Hand
) -> None:
    for number in range(3):
        await submitted(http, args={"n": number})
    one, two, three = await hand.claim(limit=10)
    stranger = {**one, "internal_id": "00000000-0000-7000-8000-000000000000"}
    answers = await hand.report(
        said(one, "start"),
        said(one, "complete", result=1),
        said(two, "start"),
        said(two, "progress", progress={"a": 1}),
        said(stranger, "start"),
        said(three, "complete"),
        said(three, "start"),
        said(two, "heartbeat"),
        said(two, "fail", error=BOOM, kind="permanent"),
    )

    assert [answer["accepted"] for answer in answers] == [
        True, True, True, True, False, False, False, True, True,
    ]  # fmt: skip
    assert [answer["problem"] and answer["problem"]["code"] for answer in answers[4:7]] == [
        "no_such_job",
        "illegal_transition",
        "illegal_transition",
    ]
    assert (await read(http, one))["state"] == "succeeded"
    assert (await read(http, two))["state"] == "failed"
    assert (await read(http, three))["state"] == "claimed"


async def test_one_bad_result_fails_alone(http: httpx.AsyncClient, hand: Hand) -> None:
    for _ in range(2):
        await submitted(http)
    good, bad = await hand.claim(limit=2)
    answers = await hand.report(
        said(good, "start"),
        said(bad, "start"),
        said(good, "complete", result="fine"),
        said(bad, "complete", result="a\0b"),
    )

    assert [answer["accepted"] for answer in answers] == [True, True, True, False]
    assert answers[3]["problem"]["code"] == "bad_data"
    assert answers[3]["held"] is True
    assert (await hand.say(bad, "complete", result="mended"))["accepted"]


async def test_a_repeated_report_changes_nothing(http: httpx.AsyncClient, hand: Hand) -> None:
    await submitted(http)
    job = await hand.claim_one()
    said_once = [
        said(job, "start"),
        said(job, "step", name="a", result=1),
        said(job, "progress", progress=1),
        said(job, "step", name="b", begun=True),
        said(job, "step", name="b", error=BOOM),
        said(job, "complete", result={"a": 1}),
    ]
    first = await hand.report(*said_once)
    history = await events(http, job)
    for _ in range(2):
        again = await hand.report(*said_once)
        assert [answer["accepted"] for answer in again] == [True] * len(said_once)
        assert [answer["repeated"] for answer in again] == [True] * len(said_once)

    assert not any(answer["repeated"] for answer in first)
    assert await events(http, job) == history


async def test_a_step_sent_again_while_its_job_runs_is_kept_once(
    http: httpx.AsyncClient, hand: Hand
) -> None:
    await submitted(http)
    job = await hand.started()
    for _ in range(2):
        assert (await hand.say(job, "step", name="a", result=1))["accepted"]
    second = await hand.say(job, "step", name="a", use=2, result=2)
    other = await hand.say(job, "step", name="a", result="other")

    assert (second["accepted"], second["repeated"]) == (True, False)
    assert (other["accepted"], other["problem"]["code"]) == (False, "step_recorded")
    assert (await events(http, job)).count("step_completed") == 2


async def test_the_same_words_sent_many_times_at_once_are_kept_once(
    http: httpx.AsyncClient, hand: Hand
) -> None:
    await submitted(http)
    job = await hand.started()
    words = [said(job, "step", name="a", result=1), said(job, "step", name="b", result=2)]
    answers = await asyncio.gather(*(hand.report(*words) for _ in range(5)))

    assert all(answer["accepted"] for one in answers for answer in one), answers
    assert (await events(http, job)).count("step_completed") == 2
    ends = await asyncio.gather(*(hand.say(job, "complete", result=3) for _ in range(5)))
    assert all(answer["accepted"] for answer in ends), ends


@pytest.mark.req("B28")
async def test_a_worker_elsewhere_can_undo_a_job(
    http: httpx.AsyncClient, store: Store, hand: Hand
) -> None:
    await submit_one(
        store, policy=Policy(compensates=True), body=b'{"seat":3}', correlation_id="order-7"
    )
    job = await hand.started()
    await hand.report(
        said(job, "step", name="reserve", result="r-1"),
        said(job, "step", name="pay", result="p-1"),
        said(job, "fail", error=BOOM, kind="permanent"),
    )
    undoing = await hand.started()
    assert (undoing["compensates"], undoing["parent_id"]) == (job["internal_id"], None)
    assert undoing["args"]["arguments"] == {"seat": 3}
    done = [(step["name"], step["result"]) for step in undoing["args"]["steps"]]
    assert done == [("pay", "p-1"), ("reserve", "r-1")]
    assert "job_compensated" not in await events(http, job)
    for _ in range(2):
        assert (await hand.say(undoing, "complete"))["accepted"]

    assert (await events(http, job)).count("job_compensated") == 1
    found = (await http.get("/v1/jobs", params={"correlation_id": "order-7"})).json()["jobs"]
    assert {one["internal_id"] for one in found} == {job["internal_id"], undoing["internal_id"]}


async def test_a_compensation_of_a_job_that_is_gone_is_ended_and_not_handed_out(
    http: httpx.AsyncClient, store: Store, hand: Hand, monkeypatch: pytest.MonkeyPatch
) -> None:
    await submit_one(store, policy=Policy(compensates=True))
    job = await hand.started()
    await hand.say(job, "fail", error=BOOM, kind="permanent")
    other = await submitted(http)

    async def gone(*_: Any) -> Any:
        raise PermanentError("what it was asked to do is erased")

    monkeypatch.setattr("holdfast.worker_protocol.assignments.add_story", gone)
    [left] = await hand.claim(limit=5)

    assert left["internal_id"] == other["internal_id"]
    letters = (await http.get("/v1/dead-letters")).json()["letters"]
    assert [letter["error_code"] for letter in letters] == ["compensation_failed"]


@pytest.mark.parametrize(
    ("word", "more", "state"),
    [
        pytest.param("complete", {"result": 1}, "succeeded", id="complete"),
        pytest.param("fail", {"error": BOOM}, "retrying", id="fail"),
        pytest.param("fail", {"error": BOOM, "kind": "permanent"}, "failed", id="permanent"),
        pytest.param("fail", {"error": BOOM, "kind": "unfit"}, "dead_lettered", id="unfit"),
        pytest.param("release", {}, "stalled", id="release"),
        pytest.param("wait", {"signal": "go"}, "waiting", id="wait"),
        pytest.param("wait", {"seconds": 3600}, "waiting", id="sleep"),
    ],
)
async def test_an_attempt_ends_once_however_often_it_is_said(
    http: httpx.AsyncClient, hand: Hand, word: str, more: dict[str, Any], state: str
) -> None:
    await submitted(http)
    job = await hand.started()
    first = await hand.say(job, word, **more)
    rev = (await read(http, job))["rev"]
    again = await hand.say(job, word, **more)
    late = await hand.say(job, "step", name="late")

    assert (first["accepted"], first["held"], first["state"]) == (True, False, state)
    assert (again["accepted"], again["held"], again["repeated"]) == (True, False, True)
    assert (late["accepted"], late["problem"]["code"]) == (False, "lease_lost")
    assert (await read(http, job))["rev"] == rev


async def test_another_end_than_the_one_that_was_said_is_refused(
    http: httpx.AsyncClient, hand: Hand
) -> None:
    await submitted(http)
    job = await hand.started()
    await hand.say(job, "complete", result=1)
    for word, more in (
        ("complete", {"result": 2}),
        ("fail", {"error": BOOM}),
        ("release", {}),
        ("wait", {"signal": "go"}),
    ):
        answer = await hand.say(job, word, **more)
        assert (answer["accepted"], answer["problem"]["code"]) == (False, "lease_lost")
    assert (await http.get(f"/v1/jobs/{job['id']}/result")).json()["result"] == 1


async def test_a_failure_is_told_as_the_worker_told_it(http: httpx.AsyncClient, hand: Hand) -> None:
    await submitted(http, retries=0)
    job = await hand.started()
    long = {**BOOM, "code": "printer_fire", "message": "x" * 5000}
    await hand.say(job, "fail", error=long)

    letter = (await http.get(f"/v1/dead-letters/{job['id']}")).json()
    assert letter["error_code"] == "exhausted_retries"
    error = (await http.get(f"/v1/jobs/{job['id']}/result")).json()["error"]
    assert (error["type"], error["code"]) == ("PrinterError", "printer_fire")
    assert error["traceback"] == "at print.js:7"
    assert len(error["message"]) == 2000


async def test_the_policy_decides_what_follows_a_failure(
    http: httpx.AsyncClient, hand: Hand
) -> None:
    await submitted(http, retries=1)
    first = await hand.started()
    answer = await hand.say(first, "fail", error=BOOM, retry_in_seconds=0)
    assert answer["state"] == "retrying"
    second = await hand.started()
    assert (second["attempt"], second["failures"], second["recall"]) == (2, 1, True)
    assert (await hand.say(second, "fail", error=BOOM))["state"] == "dead_lettered"
    # The first attempt's word is still known, and is no longer anything to go by.
    again = await hand.say(first, "fail", error=BOOM, retry_in_seconds=0)
    assert (again["accepted"], again["held"]) == (True, False)


async def test_what_may_not_run_twice_is_tried_again_as_a_new_job(
    http: httpx.AsyncClient, store: Store, hand: Hand
) -> None:
    await submit_one(store, policy=Policy(idempotent=False, max_attempts=3), body=b'{"amount":1}')
    job = await hand.started()
    assert (await hand.say(job, "release"))["problem"]["code"] == "not_idempotent"
    failed = await hand.say(job, "fail", error=BOOM, retry_in_seconds=0)
    assert failed["state"] == "failed"
    again = await hand.claim_one()

    assert again["internal_id"] != job["internal_id"]
    assert again["args"] == {"amount": 1}


async def test_a_worker_whose_lease_has_passed_is_refused(
    http: httpx.AsyncClient, store: Store, hand: Hand
) -> None:
    await submit_one(store, policy=Policy(lease=1, heartbeat=1))
    job = await hand.claim_one()
    answer = await hand.say(job, "start")

    assert (answer["accepted"], answer["held"]) == (False, False)
    assert answer["problem"]["code"] == "lease_lost"
    assert answer["problem"]["status"] == 409
    assert (await read(http, job))["state"] == "claimed"


async def test_another_session_of_the_same_token_does_not_hold_the_job(
    http: httpx.AsyncClient, hand: Hand
) -> None:
    await submitted(http)
    job = await hand.started()
    other = await Hand.hired(hand.http)
    for report in (said(job, "complete"), said({**job, "attempt": 2}, "complete")):
        for speaker in (other, hand) if report["attempt"] == 2 else (other,):
            [answer] = await speaker.report(report)
            assert (answer["accepted"], answer["held"]) == (False, False)
            assert answer["problem"]["code"] == "lease_lost"
    assert (await hand.say(job, "complete"))["accepted"]


async def test_a_worker_learns_neither_the_name_nor_the_owner_of_a_job_that_it_does_not_hold(
    http: httpx.AsyncClient, hand: Hand
) -> None:
    await submitted(http, job_id="order-of-ann")
    job = await hand.started()
    other = await Hand.hired(hand.http)
    [answer] = await other.report(said(job, "heartbeat"))
    assert answer["problem"]["code"] == "lease_lost"
    assert job["internal_id"] in answer["problem"]["detail"]
    for secret in ("order-of-ann", hand.session):
        assert secret not in str(answer)


async def test_what_one_session_said_is_not_taken_for_anothers_word(
    http: httpx.AsyncClient, hand: Hand
) -> None:
    await submitted(http)
    job = await hand.started()
    words = [
        said(job, "start"),
        said(job, "step", name="a", result=1),
        said(job, "release"),
        said(job, "release"),
    ]
    answers = await hand.report(*words)
    assert [answer["repeated"] for answer in answers] == [True, False, False, True]
    assert all(answer["accepted"] for answer in answers)
    other = await Hand.hired(hand.http)
    for word in words:
        [answer] = await other.report(word)
        assert (answer["accepted"], answer["held"], answer["repeated"]) == (False, False, False)
        assert answer["problem"]["code"] == "lease_lost"


async def test_a_cancel_request_reaches_the_worker(http: httpx.AsyncClient, hand: Hand) -> None:
    await submitted(http)
    job = await hand.started()
    assert (await hand.say(job, "heartbeat"))["cancel"] is None
    too_early = await hand.say(job, "cancel")
    assert too_early["problem"]["code"] == "no_cancel_request"
    await http.post(f"/v1/jobs/{job['id']}/cancel", json={"hard": True})
    beat = await hand.say(job, "heartbeat")
    assert (beat["accepted"], beat["held"], beat["cancel"]) == (True, True, "hard")
    ended = await hand.say(job, "cancel")

    assert (ended["accepted"], ended["held"], ended["state"]) == (True, False, "cancelled")
    assert (await hand.say(job, "cancel"))["repeated"]
    history = (await http.get(f"/v1/jobs/{job['id']}/history")).json()["events"]
    assert history[-1]["facts"]["kill"] == "confirmed"


@pytest.mark.parametrize(
    ("word", "more"),
    [
        pytest.param("fail", {"error": BOOM}, id="fail"),
        pytest.param("release", {}, id="release"),
        pytest.param("wait", {"signal": "go"}, id="wait"),
    ],
)
async def test_with_a_cancel_requested_other_ways_out_become_a_cancel(
    http: httpx.AsyncClient, hand: Hand, word: str, more: dict[str, Any]
) -> None:
    await submitted(http)
    job = await hand.started()
    await http.post(f"/v1/jobs/{job['id']}/cancel", json={})
    for repeated in (False, True):
        answer = await hand.say(job, word, **more)
        assert (answer["accepted"], answer["state"]) == (True, "cancelled")
        assert (answer["held"], answer["repeated"]) == (False, repeated)


async def test_what_was_said_to_be_cancelled_is_not_completed(
    http: httpx.AsyncClient, hand: Hand
) -> None:
    await submitted(http)
    job = await hand.started()
    await http.post(f"/v1/jobs/{job['id']}/cancel", json={})
    await hand.say(job, "cancel")
    for word, more in (("complete", {}), ("fail", {"error": BOOM}), ("release", {})):
        answer = await hand.say(job, word, **more)
        assert (answer["accepted"], answer["problem"]["code"]) == (False, "lease_lost")


async def test_a_run_past_its_timeout_is_renewed_no_more(
    http: httpx.AsyncClient, store: Store, hand: Hand
) -> None:
    await submit_one(store, policy=Policy(timeout=1, lease=60 * SECOND, max_attempts=1))
    job = await hand.started()
    assert job["timeout_seconds"] == 1e-06
    beat = await hand.say(job, "heartbeat")
    assert (beat["accepted"], beat["held"]) == (False, True)
    assert beat["problem"]["code"] == "past_timeout"
    ended = await hand.say(job, "time_out")

    assert (ended["accepted"], ended["state"]) == (True, "timed_out")
    assert (await hand.say(job, "time_out"))["repeated"]


async def test_a_signal_that_is_there_is_the_answer_to_a_wait(
    http: httpx.AsyncClient, hand: Hand
) -> None:
    await submitted(http)
    job = await hand.started()
    for payload in ({"by": "ann"}, {"by": "bob"}):
        await http.post(f"/v1/jobs/{job['id']}/signal", json={"name": "ok", "payload": payload})
    first = await hand.say(job, "wait", signal="ok")
    again = await hand.say(job, "wait", signal="ok")
    second = await hand.say(job, "wait", signal="ok", use=2)
    parked = await hand.say(job, "wait", signal="ok", use=3)

    assert (first["held"], first["payload"]) == (True, {"by": "ann"})
    assert (again["payload"], again["repeated"]) == ({"by": "ann"}, True)
    assert (second["payload"], second["repeated"]) == ({"by": "bob"}, False)
    assert (parked["held"], parked["state"], "payload" in parked) == (False, "waiting", False)


async def test_a_later_attempt_is_told_what_earlier_ones_did(
    http: httpx.AsyncClient, hand: Hand
) -> None:
    await submitted(http)
    first = await hand.started()
    await hand.report(
        said(first, "step", name="reserve", result={"seat": 3}),
        said(first, "step", name="mail", error=BOOM),
        said(first, "step", name="pay", begun=True),
        said(first, "wait", signal="ok", seconds=60),
    )
    await http.post(f"/v1/jobs/{first['id']}/signal", json={"name": "ok", "payload": "yes"})
    second = await hand.started()
    steps = (
        await hand.ask("recall", internal_id=second["internal_id"], attempt=second["attempt"])
    )["steps"]

    told = {one["name"]: one for one in steps}
    assert list(told) == ["reserve", "mail", "pay", "ok"]
    assert told["reserve"]["result"] == {"seat": 3}
    assert (told["mail"]["error"]["message"], told["mail"]["result"]) == (BOOM["message"], None)
    assert (told["pay"]["begun"], told["pay"]["result"]) == (1, None)
    assert (told["ok"]["kind"], told["ok"]["result"], told["ok"]["timed_out"]) == (
        "wait",
        "yes",
        False,
    )
    stale = await hand.http.post(
        "/v1/worker/recall",
        json={"session": hand.session, "internal_id": first["internal_id"], "attempt": 1},
    )
    assert stale.status_code == 404


async def test_lines_of_a_held_job_are_kept_in_its_log(http: httpx.AsyncClient, hand: Hand) -> None:
    for _ in range(2):
        await submitted(http)
    job, free = (
        await hand.started(),
        await read(http, {"internal_id": (await hand.claim_one())["internal_id"]}),
    )
    mine = {"internal_id": job["internal_id"], "attempt": 1}
    lines = [
        {**mine, "message": "one", "level": "warning"},
        {**mine, "attempt": 2, "message": "of an attempt that is not"},
        {**mine, "internal_id": "00000000-0000-7000-8000-000000000000", "message": "of no job"},
        {**mine, "message": "two\0" + "x" * 100_000},
    ]
    assert await hand.ask("log", lines=lines) == {"kept": 2}
    other = await Hand.hired(hand.http)
    stolen = [{"internal_id": free["internal_id"], "attempt": 1, "message": "not its own"}]
    assert await other.ask("log", lines=stolen) == {"kept": 0}

    kept = (await http.get(f"/v1/jobs/{job['id']}/logs")).json()["lines"]
    assert [(line["level"], line["attempt"]) for line in kept] == [(30, 1), (20, 1)]
    assert kept[0]["message"] == "one"
    assert kept[1]["message"].startswith("two\ufffdxxx")
    crowd = await hand.http.post(
        "/v1/worker/log", json={"session": hand.session, "lines": [lines[0]] * 1001}
    )
    assert (crowd.status_code, crowd.json()["code"]) == (413, "too_large")


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param({"say": "dance"}, id="unknown-word"),
        pytest.param({"say": "start", "attempt": 0}, id="no-attempt"),
        pytest.param({"say": "start", "internal_id": "nix"}, id="no-id"),
        pytest.param({"say": "start", "why": "x"}, id="unknown-field"),
        pytest.param({"say": "fail"}, id="no-error"),
        pytest.param({"say": "wait", "seconds": -1}, id="negative"),
        pytest.param({"say": "step", "name": "a", "use": 0}, id="use-0"),
    ],
)
async def test_a_malformed_report_is_refused_as_a_whole(
    http: httpx.AsyncClient, hand: Hand, bad: dict[str, Any]
) -> None:
    await submitted(http)
    job = await hand.claim_one()
    reports = [said(job, "start"), {**said(job, "x"), **bad}]
    reply = await hand.http.post(
        "/v1/worker/report", json={"session": hand.session, "reports": reports}
    )
    assert reply.status_code == 422, reply.text
    assert (await read(http, job))["state"] == "claimed"


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param({"say": "wait"}, id="wait-for-nothing"),
        pytest.param({"say": "wait", "signal": "holdfast:sleep"}, id="reserved"),
        pytest.param({"say": "wait", "signal": "x" * 201}, id="long-signal"),
        pytest.param({"say": "step", "name": ""}, id="nameless"),
        pytest.param({"say": "step", "name": "charge#2"}, id="a-later-use"),
        pytest.param({"say": "step", "name": "a", "begun": True, "result": 1}, id="begun-and-done"),
        pytest.param({"say": "release", "reason": "a\0b"}, id="nul"),
        pytest.param({"say": "fail", "error": {"message": "m", "code": ""}}, id="no-code"),
    ],
)
async def test_a_report_that_cannot_be_kept_is_refused_alone(
    http: httpx.AsyncClient, hand: Hand, bad: dict[str, Any]
) -> None:
    for _ in range(2):
        await submitted(http)
    job, other = await hand.claim(limit=2)
    await hand.report(said(job, "start"), said(other, "start"))
    unfit, fine = await hand.report({**said(job, "x"), **bad}, said(other, "complete"))

    assert (unfit["accepted"], unfit["problem"]["status"], unfit["held"]) == (False, 422, True)
    assert fine["accepted"]
    assert (await read(http, job))["state"] == "running"


async def test_a_long_batch_that_is_repeated_is_written_once(
    http: httpx.AsyncClient, hand: Hand
) -> None:
    await submitted(http)
    job = await hand.started()
    for number in (1, 2):
        await http.post(
            f"/v1/jobs/{job['internal_id']}/signal", json={"name": "go", "payload": number}
        )
    batch = [
        said(job, "wait", signal="go"),
        *(said(job, "step", name=f"s{number}", result=number) for number in range(250)),
    ]
    first = await hand.report(*batch)
    again = await hand.report(*batch)

    assert first[0]["payload"] == again[0]["payload"] == 1
    assert all(one["accepted"] for one in again)
    assert all(one["repeated"] for one in again)
    assert (await events(http, job)).count("step_completed") == len(batch)
    # The second signal is still there for the second wait.
    assert (await hand.say(job, "wait", signal="go", use=2))["payload"] == 2
