"""Sessions and claims: who gets which jobs, waits how long, and is seen by whom."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx
import pytest

from holdfast.http.router import Application
from holdfast.lifecycle.execution_policy import RELEASES_FREE
from tests.worker_protocol.hand import Hand, events, read, said, submitted

Call = Callable[[str | None], httpx.AsyncClient]


async def test_a_session_is_listed_as_a_worker_until_it_ends(
    http: httpx.AsyncClient, call: Call
) -> None:
    hand = await Hand.hired(
        call("worker"),
        queues=["images"],
        tasks=["resize"],
        capabilities=["gpu"],
        concurrency=3,
        host="cam",
        pid=7,
    )
    [told] = (await http.get("/v1/workers")).json()["workers"]
    assert told["name"] == hand.session
    assert (told["queues"], told["tasks"], told["capabilities"]) == (
        ["images"],
        ["resize"],
        ["gpu"],
    )
    assert (told["concurrency"], told["host"], told["pid"]) == (3, "cam", 7)
    ended = await hand.http.delete(f"/v1/worker/sessions/{hand.session}")
    assert ended.json() == {"given_back": []}
    [told] = (await http.get("/v1/workers")).json()["workers"]
    assert told["stopped_at"] is not None


async def test_a_worker_that_claims_or_reports_is_seen(
    http: httpx.AsyncClient, hand: Hand, server: Application
) -> None:
    presence = server.state.workers.presence
    clock = [0.0]
    presence._clock = lambda: clock[0]

    async def seen() -> int:
        clock[0] += 10
        [told] = (await http.get("/v1/workers")).json()["workers"]
        at: int = told["seen_at"]
        return at

    first = await seen()
    await submitted(http)
    job = await hand.claim_one()
    claimed = await seen()
    await hand.say(job, "start")
    started = await seen()
    assert first < claimed < started


async def test_ending_a_session_gives_back_what_it_holds(
    http: httpx.AsyncClient, hand: Hand
) -> None:
    for _ in range(2):
        await submitted(http)
    begun, kept = await hand.claim(limit=2)
    await hand.say(begun, "start")
    ended = await hand.http.delete(f"/v1/worker/sessions/{hand.session}")
    assert set(ended.json()["given_back"]) == {begun["internal_id"], kept["internal_id"]}
    for job in (begun, kept):
        told = await read(http, job)
        assert (told["state"], told["failures"]) == ("stalled", 0)
    [late] = await hand.report(said(begun, "complete"))
    assert late["problem"]["code"] == "lease_lost"


async def test_a_claim_sent_again_gives_the_same_jobs(http: httpx.AsyncClient, hand: Hand) -> None:
    for _ in range(3):
        await submitted(http)
    first = await hand.claim(request_id="r1", limit=2)
    again = await hand.claim(request_id="r1", limit=2)
    assert sorted(again, key=lambda one: str(one["internal_id"])) == sorted(
        first, key=lambda one: str(one["internal_id"])
    )
    # Another session may have had the same thought.
    other = await Hand.hired(hand.http)
    assert len(await other.claim(request_id="r1", limit=2)) == 1
    for job in first:
        await hand.report(said(job, "start"), said(job, "complete"))
    reply = await hand.http.post(
        "/v1/worker/claim", json={"session": hand.session, "request_id": "r1"}
    )
    assert (reply.status_code, reply.json()["code"]) == (409, "lease_lost")


async def test_a_claim_waits_for_a_job_to_come(http: httpx.AsyncClient, hand: Hand) -> None:
    waiting = asyncio.create_task(hand.claim(wait_seconds=25))
    looked = await hand.claim()
    assert looked == []
    await submitted(http)
    [job] = await asyncio.wait_for(waiting, 20)
    assert job["task"] == "charge"


async def test_many_that_wait_get_a_job_each(http: httpx.AsyncClient, hand: Hand) -> None:
    hands = [await Hand.hired(hand.http) for _ in range(8)]
    waiting = [asyncio.create_task(one.claim(wait_seconds=25)) for one in hands]
    for number in range(8):
        await submitted(http, args={"n": number})
    got = await asyncio.wait_for(asyncio.gather(*waiting), 20)
    assert sorted(job["args"]["n"] for [job] in got) == list(range(8))


@pytest.mark.parametrize("who", ["worker@mine", "admin@mine"])
async def test_a_tenants_worker_gets_that_tenants_jobs(call: Call, who: str) -> None:
    theirs = await submitted(call("submitter@theirs"))
    mine = await submitted(call("submitter@mine"))
    hand = await Hand.hired(call(who))
    [job] = await hand.claim(limit=10)
    assert job["internal_id"] == mine["internal_id"]
    # Of another tenant's job nothing is told, not even that it is there.
    absent = {"internal_id": "00000000-0000-7000-8000-000000000000", "attempt": 1}
    foreign = {"internal_id": theirs["internal_id"], "attempt": 1}
    problems = []
    for one in (absent, foreign):
        [answer] = await hand.report(said(one, "start"))
        assert (answer["held"], answer["state"]) == (False, None)
        problems.append({**answer["problem"], "detail": "", "job_id": "", "request_id": ""})
    assert problems[0] == problems[1]
    for one in (absent, foreign):
        reply = await hand.http.post("/v1/worker/recall", json={"session": hand.session, **one})
        assert (reply.status_code, reply.json()["code"]) == (404, "no_such_job")


async def test_a_worker_for_all_may_claim_for_one(http: httpx.AsyncClient, call: Call) -> None:
    for tenant in ("mine", "theirs"):
        await submitted(http, tenant=tenant)
    worker = call("worker")
    worker.headers["holdfast-tenant"] = "mine"
    hand = await Hand.hired(worker)
    assert [job["tenant"] for job in await hand.claim(limit=10)] == ["mine"]


async def test_a_session_reads_the_tenant_only_to_publish_terms(call: Call) -> None:
    worker = call("worker@mine")
    worker.headers["holdfast-tenant"] = "theirs"
    without = await worker.post("/v1/worker/sessions", json={"tasks": ["t"]})
    assert without.status_code == 201, without.text
    terms = {"tasks": ["t"], "terms": {"t": {"retries": 1}}}
    assert (await worker.post("/v1/worker/sessions", json=terms)).status_code == 403


async def test_no_token_speaks_for_anothers_session(http: httpx.AsyncClient, call: Call) -> None:
    await submitted(http)
    hand = await Hand.hired(call("worker"))
    job = await hand.started()
    thief = Hand(call("admin"), hand.session)
    for path, said_ in (
        ("claim", {"request_id": "r"}),
        ("report", {"reports": [said(job, "complete")]}),
        ("log", {"lines": []}),
        ("recall", {"internal_id": job["internal_id"], "attempt": 1}),
    ):
        reply = await thief.http.post(f"/v1/worker/{path}", json={"session": hand.session, **said_})
        assert (reply.status_code, reply.json()["field"]) == (422, "$.session")
    ended = await thief.http.delete(f"/v1/worker/sessions/{hand.session}")
    assert ended.status_code == 422
    assert await events(http, job) == ["job_created", "job_claimed", "job_started"]


async def test_limits_are_told(hand: Hand) -> None:
    for path, wrong in (
        ("claim", {"request_id": "r", "limit": 101}),
        ("claim", {"request_id": "r", "wait_seconds": 26}),
        ("claim", {"request_id": ""}),
        ("claim", {"request_id": "a\0b"}),
        ("claim", {"request_id": "r", "queues": ["a\0b"]}),
        ("claim", {"request_id": "r", "queues": ["q"], "capabilities": ["a\0b"] * 101}),
        ("claim", {"request_id": "r", "queues": ["q"] * 101}),
    ):
        reply = await hand.http.post(f"/v1/worker/{path}", json={"session": hand.session, **wrong})
        assert reply.status_code == 422, reply.text
    start = {"say": "start", "internal_id": "00000000-0000-7000-8000-000000000000", "attempt": 1}
    crowd = await hand.http.post(
        "/v1/worker/report", json={"session": hand.session, "reports": [start] * 1001}
    )
    assert (crowd.status_code, crowd.json()["code"]) == (413, "too_large")


async def test_a_worker_gets_only_jobs_of_the_tasks_that_it_names(
    http: httpx.AsyncClient, hand: Hand
) -> None:
    for task in ("other", "charge", "fresh"):
        await submitted(http, task=task)

    assert await hand.claim(tasks=["nothing"], limit=10) == []
    assert [job["task"] for job in await hand.claim(tasks=["charge"], limit=10)] == ["charge"]
    assert [job["task"] for job in await hand.claim(limit=10)] == ["other", "fresh"]


async def test_a_session_that_was_opened_with_tasks_claims_no_others(
    http: httpx.AsyncClient, hand: Hand, server: Application
) -> None:
    worker = await Hand.hired(hand.http, tasks=["charge", "refund@2"])
    for task, version in (("other", None), ("charge", None), ("refund", "1"), ("refund", "2")):
        await submitted(http, task=task, task_version=version)
    # Another server, or this one started again, has not seen the session being opened.
    server.state.workers.presence._tasks.clear()

    found = await worker.claim(limit=10)
    assert [(job["task"], (await read(http, job))["task_version"]) for job in found] == [
        ("charge", None),
        ("refund", "2"),
    ]


async def test_a_job_that_a_worker_cannot_run_is_given_back_at_no_cost_however_often(
    http: httpx.AsyncClient, hand: Hand
) -> None:
    job = await submitted(http, retries=0)
    for _ in range(RELEASES_FREE + 1):
        claimed = await hand.claim_one()
        answer = await hand.say(claimed, "release", reason="no such task here", unserved=True)
        assert answer["accepted"]
        assert await hand.claim() == []
        await http.post(f"/v1/jobs/{job['internal_id']}/reschedule", json={"delay": "0s"})

    told = await read(http, job)
    assert (told["state"], told["failures"], told["releases"]) == ("stalled", 0, 0)


async def test_a_session_that_was_never_opened_claims_nothing(
    http: httpx.AsyncClient, hand: Hand
) -> None:
    await submitted(http)
    invented = f"{hand.session.partition('.')[0]}.invented"
    body = {"session": invented, "request_id": "1", "wait_seconds": 0}
    refused = await hand.http.post("/v1/worker/claim", json=body)
    assert (refused.status_code, refused.json()["field"]) == (422, "$.session")
    assert "POST /v1/worker/sessions" in refused.json()["detail"]
    assert len(await hand.claim()) == 1
