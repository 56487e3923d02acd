"""Terms of tasks over the worker protocol: a session declares them, and every job has them."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from holdfast.errors import Refused, StoreUnavailable
from holdfast.http.router import Application
from tests.worker_protocol.hand import Hand, events, read, submitted

Call = Callable[[str | None], httpx.AsyncClient]
ONCE = {"charge": {"idempotent": False, "timeout_seconds": 60}}


async def test_a_job_that_came_before_the_terms_is_corrected_when_it_is_claimed(
    http: httpx.AsyncClient, call: Call
) -> None:
    await submitted(http)
    hand = await Hand.hired(call("worker"), tasks=["charge"], terms=ONCE)
    job = await hand.claim_one()
    assert (job["max_attempts"], job["timeout_seconds"]) == (1, 60)
    assert await events(http, job) == ["job_created", "job_claimed", "job_terms_corrected"]
    await hand.say(job, "start")
    answer = await hand.say(job, "fail", error={"message": "no answer"})
    assert answer["state"] == "dead_lettered"


async def test_a_job_that_comes_after_the_terms_has_them(
    http: httpx.AsyncClient, call: Call
) -> None:
    hand = await Hand.hired(call("worker"), tasks=["charge"], terms=ONCE)
    job = await submitted(http)
    assert job["policy"]["max_attempts"] == 1
    assert not job["policy"]["idempotent"]
    claimed = await hand.claim_one()
    assert await events(http, claimed) == ["job_created", "job_claimed"]


async def test_a_repeated_claim_does_not_correct_twice(http: httpx.AsyncClient, call: Call) -> None:
    await submitted(http)
    hand = await Hand.hired(call("worker"), tasks=["charge"], terms=ONCE)
    first = await hand.claim_one(request_id="same")
    assert await hand.claim_one(request_id="same") == first
    assert (await events(http, first)).count("job_terms_corrected") == 1


async def test_no_job_is_handed_out_while_the_terms_of_its_task_cannot_be_read(
    http: httpx.AsyncClient, call: Call, server: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    await submitted(http)
    hand = await Hand.hired(call("worker"), tasks=["charge"], terms=ONCE)

    async def fails(*_: object) -> None:
        raise StoreUnavailable("the database does not answer")

    store = server.state.session.store
    with monkeypatch.context() as away:
        away.setattr(store, "task_terms", fails)
        claim = {"session": hand.session, "request_id": "same"}
        reply = await hand.http.post("/v1/worker/claim", json=claim)
        assert (reply.status_code, reply.json()["code"]) == (503, "store_unavailable")
    job = await hand.claim_one(request_id="same")
    assert (job["attempt"], job["max_attempts"]) == (1, 1)


async def test_the_terms_of_one_tenant_are_not_anothers(
    http: httpx.AsyncClient, call: Call
) -> None:
    await Hand.hired(call("worker@mine"), tasks=["charge"], terms=ONCE)
    assert not (await submitted(http, tenant="mine"))["policy"]["idempotent"]
    assert (await submitted(http, tenant="theirs"))["policy"]["idempotent"]


async def test_a_worker_of_some_queues_cannot_declare_terms_for_all(
    http: httpx.AsyncClient, call: Call
) -> None:
    refused = await call("worker@#images").post("/v1/worker/sessions", json={"terms": ONCE})
    assert refused.status_code == 403, refused.text
    job = await submitted(http)
    assert (await read(http, job))["policy"]["idempotent"]


@pytest.mark.parametrize("bad", [{"retries": -1}, {"timeout_seconds": 0}, {"idempotence": True}])
async def test_terms_that_no_job_could_have_are_refused(call: Call, bad: dict[str, object]) -> None:
    refused = await call("worker").post("/v1/worker/sessions", json={"terms": {"charge": bad}})
    assert refused.status_code == 422, refused.text


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"tasks": ["y"], "terms": {"y": {"queue": "holdfast.x"}}}, "reserved_name"),
        ({"tasks": ["holdfast.y"], "terms": {"holdfast.y": {}}}, "reserved_name"),
        ({"tasks": ["y"], "terms": {"z": {}}}, "bad_data"),
        ({"terms": {"z": {}}}, "bad_data"),
    ],
)
async def test_a_session_declares_terms_of_its_own_tasks_and_in_open_queues_alone(
    http: httpx.AsyncClient, call: Call, body: dict[str, object], code: str
) -> None:
    refused = await call("worker").post("/v1/worker/sessions", json=body)
    assert (refused.status_code, refused.json()["code"]) == (422, code)
    assert refused.json()["field"] == "$.terms"
    assert (await submitted(http, task="y"))["queue"] == "default"


async def test_a_token_for_some_queues_submits_by_name_only_into_these(
    http: httpx.AsyncClient, call: Call
) -> None:
    elsewhere = {"pay": {"queue": "payments"}}
    await Hand.hired(call("worker"), tasks=["pay"], terms=elsewhere)
    refused = await call("submitter@#default").post("/v1/jobs", json={"task": "pay"})
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    taken = await call("submitter@#payments").post("/v1/jobs", json={"task": "pay"})
    assert (taken.status_code, taken.json()["job"]["queue"]) == (201, "payments")
    assert len((await http.get("/v1/jobs")).json()["jobs"]) == 1


async def test_a_job_whose_terms_cannot_be_corrected_is_given_back(
    http: httpx.AsyncClient, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = await submitted(http)
    hand = await Hand.hired(call("worker"), tasks=["charge"], terms=ONCE)

    async def refused(*_: object) -> None:
        raise Refused("something else came first")

    monkeypatch.setattr("holdfast.worker_protocol.assignments._correct_terms", refused)
    assert await hand.claim() == []
    now = await read(http, job)
    assert (now["owner"], now["failures"], now["attempt"]) == (None, 0, 1)
