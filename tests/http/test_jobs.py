"""Jobs over HTTP: submit, read, wait, cancel, signal, explain."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import httpx
import pytest

from holdfast.lifecycle.states import State


async def submitted(http: httpx.AsyncClient, **wanted: Any) -> dict[str, Any]:
    """Submit one job, and give it as it is told."""
    reply = await http.post("/v1/jobs", json={"task": "other", **wanted})
    assert reply.status_code in (200, 201), reply.text
    receipt: dict[str, Any] = reply.json()
    told: dict[str, Any] = receipt["job"]
    return told


async def test_a_job_is_submitted_read_and_cancelled(http: httpx.AsyncClient) -> None:
    reply = await http.post("/v1/jobs", json={"task": "resize", "args": {"image": "a.png"}})
    assert reply.status_code == 201
    receipt = reply.json()
    assert receipt["created"] is True
    assert receipt["job"]["queue"] == "images"
    assert receipt["job"]["policy"]["max_attempts"] == 8
    read = await http.get(reply.headers["location"])
    assert read.json() == receipt["job"]
    assert read.headers["etag"] == '"1"'
    ended = await http.post(f"/v1/jobs/{receipt['job_id']}/cancel", json={"reason": "enough"})
    assert ended.json()["state"] == "cancelled"
    history = (await http.get(f"/v1/jobs/{receipt['job_id']}/history")).json()["events"]
    assert [event["type"] for event in history] == ["job_created", "job_cancelled"]
    assert history[-1]["actor"] == "control:root"


@pytest.mark.req("D10", "D11")
async def test_the_same_client_job_id_is_the_same_job(http: httpx.AsyncClient) -> None:
    wanted = {"task": "other", "client_job_id": "3F2504E0-4F89-41D3-9A0C-0305E82C3301"}
    first = await http.post("/v1/jobs", json=wanted)
    lower = wanted | {"client_job_id": wanted["client_job_id"].lower()}
    again = await http.post("/v1/jobs", json=lower)
    assert (first.status_code, again.status_code) == (201, 200)
    assert (first.json()["created"], again.json()["created"]) == (True, False)
    assert first.json()["job_id"] == again.json()["job_id"]
    assert again.json()["message"] == "Existing job returned (idempotent)"
    assert (await http.get(f"/v1/jobs/{first.json()['job_id']}")).json()["id"]
    bad = await http.post("/v1/jobs", json=wanted | {"client_job_id": "not-a-uuid"})
    assert bad.status_code == 422
    assert "client_job_id" in bad.json()["detail"]


async def test_an_idempotency_key_makes_a_repetition_harmless(http: httpx.AsyncClient) -> None:
    key = {"idempotency-key": "k1"}
    first = await http.post("/v1/jobs", json={"task": "other"}, headers=key)
    again = await http.post("/v1/jobs", json={"task": "other"}, headers=key)
    assert (first.status_code, again.status_code) == (201, 200)
    other = await http.post("/v1/jobs", json={"task": "another"}, headers=key)
    assert (other.status_code, other.json()["code"]) == (409, "request_id_reused")
    many = {"jobs": [{"task": "a"}, {"task": "b"}]}
    once = await http.post("/v1/jobs/batch", json=many, headers={"idempotency-key": "k2"})
    twice = await http.post("/v1/jobs/batch", json=many, headers={"idempotency-key": "k2"})
    ids = [[one["accepted"]["job_id"] for one in r.json()["jobs"]] for r in (once, twice)]
    assert ids[0] == ids[1]


async def test_each_of_many_is_answered_for_itself(http: httpx.AsyncClient) -> None:
    many = [{"task": "other"}, {"task": "resize", "args": {"image": 7}}, {"task": ""}]
    reply = await http.post("/v1/jobs/batch", json={"jobs": many})
    assert reply.status_code == 200
    good, unfit, unnamed = reply.json()["jobs"]
    assert good["accepted"]["created"] is True
    assert unfit["problem"]["code"] == "validation_failed"
    assert "image" in unfit["problem"]["detail"]
    assert unnamed["problem"]["status"] == 422
    for one in ({"task": "x"}, {"task": 7}):
        crowd = await http.post("/v1/jobs/batch", json={"jobs": [one] * 1001})
        assert (crowd.status_code, crowd.json()["code"]) == (413, "too_large")


async def test_one_of_many_that_cannot_be_read_fails_alone(http: httpx.AsyncClient) -> None:
    many = [{"task": "a"}, {"task": "b", "retries": "x"}, {"task": "c", "nix": 1}, 7, {"task": "d"}]
    key = {"idempotency-key": "k"}
    replies = [await http.post("/v1/jobs/batch", json={"jobs": many}, headers=key) for _ in "12"]
    first, again = [reply.json()["jobs"] for reply in replies]
    assert [one["accepted"] and one["accepted"]["job"]["task"] for one in first] == [
        "a",
        None,
        None,
        None,
        "d",
    ]
    fields = [one["problem"]["field"] for one in first[1:4]]
    assert fields == ["$.jobs[1].retries", "$.jobs[2].nix", "$.jobs[3]"]
    # A key stands for the same job, whatever its neighbours are.
    mended = [*many[:1], {"task": "b"}, {"task": "c"}, {"task": "e"}, many[4]]
    mended_reply = await http.post("/v1/jobs/batch", json={"jobs": mended}, headers=key)
    created = [one["accepted"]["created"] for one in mended_reply.json()["jobs"]]
    assert created == [False, True, True, True, False]
    assert [one["accepted"]["created"] for one in (again[0], again[4])] == [False, False]
    whole = await http.post("/v1/jobs/batch", json={"jobs": [{"task": "a"}], "nix": 1})
    assert (whole.status_code, whole.json()["field"]) == (422, "$.nix")


@pytest.mark.req("C3")
async def test_if_match_compares_the_revision(http: httpx.AsyncClient) -> None:
    job = await submitted(http)
    url = f"/v1/jobs/{job['id']}"
    stale = await http.post(f"{url}/cancel", json={}, headers={"if-match": '"9"'})
    assert (stale.status_code, stale.json()["code"]) == (412, "stale_revision")
    assert stale.json()["job_id"] == job["id"]
    garbage = await http.post(f"{url}/cancel", json={}, headers={"if-match": "x"})
    assert garbage.status_code == 422
    assert (await http.get(url)).json()["rev"] == 1
    good = await http.post(f"{url}/signal", json={"name": "go"}, headers={"if-match": '"1"'})
    assert good.json()["rev"] == 2
    assert good.json()["signals"] == ["go"]


@pytest.mark.req("E5")
async def test_the_answer_to_a_signal_counts_those_that_are_kept_and_names_this_one(
    http: httpx.AsyncClient,
) -> None:
    url = f"/v1/jobs/{(await submitted(http))['id']}"
    await http.post(f"{url}/signal", json={"name": "first"})
    second = (await http.post(f"{url}/signal", json={"name": "second"})).json()
    assert (second["signals"], second["pending_signals"]) == (["second"], 2)
    whole = (await http.get(url)).json()
    assert (whole["signals"], whole["pending_signals"]) == (["first", "second"], 2)


async def test_jobs_are_listed_with_filters_and_a_cursor(http: httpx.AsyncClient) -> None:
    ids = [(await submitted(http, queue=f"q{number % 2}"))["id"] for number in range(5)]
    page = (await http.get("/v1/jobs", params={"limit": 2})).json()
    assert [job["id"] for job in page["jobs"]] == ids[:-3:-1]
    rest = (await http.get("/v1/jobs", params={"before": page["next"]})).json()
    assert [job["id"] for job in rest["jobs"]] == ids[2::-1]
    assert rest["next"] is None
    of_queue = (await http.get("/v1/jobs", params={"queue": "q1", "state": "queued"})).json()
    assert [job["id"] for job in of_queue["jobs"]] == [ids[3], ids[1]]
    assert (await http.get("/v1/jobs", params={"state": "cancelled"})).json()["jobs"] == []
    for bad in ({"state": "nix"}, {"limit": 0}, {"before": "x"}, {"created_from": "2026-11-16"}):
        refused = await http.get("/v1/jobs", params=bad)
        assert (refused.status_code, refused.json()["field"]) == (
            422,
            next(iter(bad)) + (".0" if "state" in bad else ""),
        )


@pytest.mark.parametrize("form", ["%Y-%m-%dT%H:%MZ", "%Y-%m-%d %H:%M:%S+00:00", "%s"])
async def test_a_date_of_a_filter_may_be_written_in_several_ways(
    http: httpx.AsyncClient, form: str
) -> None:
    job = await submitted(http)
    start = datetime(2020, 1, 1, 12, 30, tzinfo=UTC)
    since = str(int(start.timestamp())) if form == "%s" else start.strftime(form)
    found = (await http.get("/v1/jobs", params={"created_from": since})).json()
    assert [one["id"] for one in found["jobs"]] == [job["id"]]
    none = (await http.get("/v1/jobs", params={"created_until": since})).json()
    assert none["jobs"] == []


async def test_a_result_is_waited_for(http: httpx.AsyncClient) -> None:
    job = await submitted(http)
    url = f"/v1/jobs/{job['id']}"
    early = await http.get(f"{url}/result", params={"wait": 0.05})
    assert (early.status_code, early.json()["state"]) == (202, "queued")
    assert early.headers["etag"] == '"1"'
    await http.post(f"{url}/cancel", json={})
    late = await http.get(f"{url}/result")
    assert late.status_code == 200
    assert (late.json()["state"], late.json()["error_code"]) == ("cancelled", "cancelled")


@pytest.mark.parametrize("dialect", ["A", "B", "C", "D", "E"])
async def test_a_job_is_told_in_the_words_of_each_seed(
    http: httpx.AsyncClient, dialect: str
) -> None:
    job = await submitted(http)
    for path in ("", "/history"):
        told = await http.get(f"/v1/jobs/{job['id']}{path}", params={"dialect": dialect})
        assert told.status_code == 200
        assert told.json()


async def test_why_and_lineage_are_told(http: httpx.AsyncClient) -> None:
    parent = await submitted(http)
    child = await submitted(http, parent=parent["id"])
    told = (await http.get(f"/v1/jobs/{child['id']}/why")).json()
    assert told["why"]["reason"]["code"] == "no_worker"
    tree = (await http.get(f"/v1/jobs/{parent['id']}/lineage")).json()["tree"]
    assert [node["id"] for node in tree["below"]] == [child["internal_id"]]


async def test_queues_are_listed_paused_and_resumed(http: httpx.AsyncClient) -> None:
    await submitted(http, queue="q")
    paused = await http.post("/v1/queues/q/pause", json={"reason": "repairs"})
    assert paused.json()["paused_by"] == "control:root"
    [queue] = (await http.get("/v1/queues")).json()["queues"]
    assert (queue["jobs"], queue["reason"]) == ({State.QUEUED: 1}, "repairs")
    assert (await http.post("/v1/queues/q/resume", json={})).json()["paused_at"] is None
    assert (await http.get("/v1/workers")).json()["workers"] == []


async def test_a_job_without_a_letter_has_none(http: httpx.AsyncClient) -> None:
    job = await submitted(http)
    assert (await http.get("/v1/dead-letters")).json()["letters"] == []
    for reply in (
        await http.get(f"/v1/dead-letters/{job['id']}"),
        await http.post(f"/v1/dead-letters/{job['id']}/redrive", json={}),
        await http.post(f"/v1/dead-letters/{job['id']}/discard", json={}),
    ):
        assert reply.status_code == 409, reply.text


async def test_a_delay_that_is_not_a_span_is_refused_with_its_field(
    http: httpx.AsyncClient,
) -> None:
    job = await submitted(http, delay="1h")
    reply = await http.post(f"/v1/jobs/{job['id']}/reschedule", json={"delay": "soon"})
    assert reply.status_code == 422, reply.text
    assert reply.json()["field"] == "$.delay"
