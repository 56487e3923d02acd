"""Commands over HTTP: the document's own requests and answers (D2, D10, D11, D17)."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from holdfast.http.router import Application
from holdfast.lifecycle import commands as c
from holdfast.ports.store import Store
from holdfast.testing.factories import owner_of
from holdfast.testing.store_actions import do
from tests.support.command_ends import end_command, start_command
from tests.support.command_table import AGENT, CODES, GRANTED, KEPT, KEY, REFUSED, WORKER, Case

SUBMITTERS = 64
SEED = {
    "client_job_id": KEY,
    "type": "worker",
    "command": "cargo build --release",
}
"""The request of the document, without its upload: uploads are not there yet."""


def store_of(server: Application) -> Store:
    store: Store = server.state.session.store
    return store


async def submit(http: httpx.AsyncClient, **request: Any) -> dict[str, Any]:
    reply = await http.post("/v1/jobs", json=request)
    assert reply.status_code in (200, 201), reply.text
    answer: dict[str, Any] = reply.json()
    return answer


async def read_d(http: httpx.AsyncClient, job: str) -> dict[str, Any]:
    document: dict[str, Any] = (await http.get(f"/v1/jobs/{job}?dialect=D")).json()
    return document


@pytest.mark.req("D2", "D17")
@pytest.mark.parametrize("case", KEPT, ids=lambda case: case.name)
async def test_a_command_is_kept_as_the_table_says(http: httpx.AsyncClient, case: Case) -> None:
    answer = await submit(http, **case.request)
    if case.field in GRANTED:
        name, unit = GRANTED[case.field]
        assert answer["job"][name] == case.kept * unit
    shown = await read_d(http, answer["job_id"])
    if case.field in shown:
        assert shown[case.field] == case.kept
    if case.kept != case.value:
        assert f"{case.field} {case.value} to {case.kept}" in answer["message"]
        [first] = (await http.get(f"/v1/jobs/{answer['job_id']}/history")).json()["events"]
        assert first["payload"]["asked"] == {case.field: case.value}


@pytest.mark.req("D1", "D2", "D9", "D10", "D17")
@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.name)
async def test_a_refusal_names_the_field_and_leaves_no_job(
    http: httpx.AsyncClient, case: Case
) -> None:
    reply = await http.post("/v1/jobs", json=case.request)
    problem = reply.json()
    assert reply.status_code == 422
    assert problem["field"] == f"$.{case.field}"
    assert problem["code"] in CODES.get(str(case.code), {case.code})
    assert (await http.get("/v1/jobs")).json()["jobs"] == []


@pytest.mark.req("D10", "D11")
async def test_a_repeat_returns_the_existing_job_as_the_document_writes_it(
    http: httpx.AsyncClient, server: Application
) -> None:
    made = await http.post("/v1/jobs", json=SEED)
    first = made.json()
    assert made.status_code == 201
    assert (first["created"], first["status"], first["message"]) == (True, "pending", None)
    await start_command(store_of(server))

    repeat = await http.post("/v1/jobs", json=SEED | {"client_job_id": KEY.upper()})

    assert repeat.status_code == 200
    answer = repeat.json()
    assert answer.pop("job")["id"] == first["job_id"]
    assert answer == {
        "job_id": first["job_id"],
        "status": "running",
        "created": False,
        "message": "Existing job returned (idempotent)",
    }


@pytest.mark.req("D11", "B21")
async def test_64_submitters_with_one_client_job_id_make_one_job(http: httpx.AsyncClient) -> None:
    keys = [KEY, KEY.upper()]
    asked = (submit(http, **SEED | {"client_job_id": keys[n % 2]}) for n in range(SUBMITTERS))
    answers = await asyncio.gather(*asked)
    assert len({answer["job_id"] for answer in answers}) == 1
    assert [answer["created"] for answer in answers].count(True) == 1
    assert len((await http.get("/v1/jobs")).json()["jobs"]) == 1


@pytest.mark.req("D6", "D11")
async def test_a_job_that_timed_out_is_read_as_the_document_writes_it(
    http: httpx.AsyncClient, server: Application
) -> None:
    answer = await submit(http, **WORKER, image="busybox", timeout_minutes=1)
    store = store_of(server)
    job = await start_command(store)
    await do(store, job, c.TimeOut(actor=owner_of(job), exit_code=137))

    shown = await read_d(http, answer["job_id"])

    times = {name: shown.pop(name) for name in ("created_at", "started_at", "completed_at")}
    assert all(text.endswith("Z") for text in times.values())
    assert shown == {
        "id": answer["job_id"],
        "status": "timed_out",
        "exit_code": 137,
        "timeout_minutes": 1,
        "actual_runtime_seconds": 0,
        "error": "Job exceeded timeout limit",
        "type": "worker",
        "command": "make test",
        "image": "busybox",
        "cpus": 2,
        "memory_gb": 4,
        "duration_seconds": 0,
    }


@pytest.mark.req("D4", "D17")
@pytest.mark.parametrize(("code", "status"), [(0, "completed"), (3, "failed"), (137, "failed")])
async def test_how_a_command_exited_can_be_read_back(
    http: httpx.AsyncClient, server: Application, code: int, status: str
) -> None:
    job = (await submit(http, type="worker", argv=["make", "-j4", "a b"]))["job_id"]
    await end_command(store_of(server), code)
    shown = await read_d(http, job)
    assert (shown["status"], shown["exit_code"]) == (status, code)
    assert shown["command"] == "make -j4 'a b'"
    view = (await http.get(f"/v1/jobs/{job}")).json()
    assert (view["kind"], view["exit_code"], view["memory_mb"]) == ("command", code, 4096)
    result = (await http.get(f"/v1/jobs/{job}/result")).json()
    assert result["result"] == ({"exit_code": 0} if code == 0 else None)


@pytest.mark.req("D17")
async def test_an_agent_is_read_with_its_task(http: httpx.AsyncClient, server: Application) -> None:
    job = (await submit(http, **AGENT, context="see the log"))["job_id"]
    await start_command(store_of(server), "agents")
    shown = await read_d(http, job)
    assert (shown["type"], shown["status"], shown["command"]) == ("agent", "running", None)
    assert (shown["task"], shown["context"]) == ("fix the build", "see the log")
    assert (shown["git_branch"], shown["elapsed_seconds"]) == ("fix/build", 0)


async def test_a_function_is_read_in_the_dialect_as_before(http: httpx.AsyncClient) -> None:
    shown = await read_d(http, (await submit(http, task="t"))["job_id"])
    assert "command" not in shown
    assert "type" not in shown


@pytest.mark.req("D17")
async def test_a_batch_takes_calls_and_commands_side_by_side(http: httpx.AsyncClient) -> None:
    jobs = [{"task": "t"}, WORKER | {"cpus": 99}, {"type": "agent"}, {"type": "worker", "x": 1}]
    answers = (await http.post("/v1/jobs/batch", json={"jobs": jobs})).json()["jobs"]
    assert answers[0]["accepted"]["job"]["kind"] == "function"
    assert answers[0]["accepted"]["status"] is None
    assert answers[1]["accepted"]["job"]["cpus"] == 8
    assert "cpus 99 to 8" in answers[1]["accepted"]["message"]
    assert answers[2]["problem"]["code"] == "missing_task"
    assert answers[2]["problem"]["field"] == "$.jobs[2].task"
    assert answers[3]["problem"]["field"] == "$.jobs[3].x"


async def test_an_idempotency_key_makes_one_command(http: httpx.AsyncClient) -> None:
    headers = {"idempotency-key": "k1"}
    first, again = [await http.post("/v1/jobs", json=WORKER, headers=headers) for _ in range(2)]
    other = await http.post("/v1/jobs", json=WORKER | {"command": "x"}, headers=headers)
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["job_id"] == first.json()["job_id"]
    assert (other.status_code, other.json()["code"]) == (409, "request_id_reused")


class TestDelete:
    """`DELETE /v1/jobs/{id}`: the document's kill_job."""

    @pytest.mark.req("D7")
    async def test_cancels_a_waiting_job_and_may_be_repeated(self, http: httpx.AsyncClient) -> None:
        job = (await submit(http, **WORKER))["job_id"]
        for _ in range(2):
            reply = await http.delete(f"/v1/jobs/{job}")
            assert (reply.status_code, reply.json()["state"]) == (200, "cancelled")

    @pytest.mark.req("D7")
    async def test_asks_the_owner_of_a_running_job(
        self, http: httpx.AsyncClient, server: Application
    ) -> None:
        job = (await submit(http, **WORKER))["job_id"]
        await start_command(store_of(server))
        reply = await http.delete(f"/v1/jobs/{job}")
        assert reply.json()["cancel_requested"] == "soft"

    @pytest.mark.req("D8")
    async def test_is_refused_once_the_job_has_ended(
        self, http: httpx.AsyncClient, server: Application
    ) -> None:
        job = (await submit(http, **WORKER))["job_id"]
        await end_command(store_of(server), 0)
        reply = await http.delete(f"/v1/jobs/{job}")
        assert (reply.status_code, reply.json()["code"]) == (409, "already_ended")


@pytest.mark.req("D9")
async def test_a_failed_command_is_redriven_as_a_new_linked_job_without_retries(
    http: httpx.AsyncClient, server: Application
) -> None:
    job = (await submit(http, **WORKER, cpus=9, env={"A": "1"}, client_job_id=KEY))["job"]
    failed = await end_command(store_of(server), 3)
    assert failed.letter is None

    refused = await http.post(f"/v1/dead-letters/{job['id']}/redrive", json={"retries": 2})
    assert (refused.status_code, refused.json()["field"]) == (422, "$.retries")
    again = (await http.post(f"/v1/dead-letters/{job['id']}/redrive", json={})).json()

    assert (again["link_kind"], again["parent_id"]) == ("redrive", job["internal_id"])
    same = ("kind", "task", "queue", "needs", "policy", "cpus", "memory_mb")
    assert {name: again[name] for name in same} == {name: job[name] for name in same}
    [old, new] = [
        (await http.get(f"/v1/jobs/{one}/history")).json()["events"][0]
        for one in (job["id"], again["id"])
    ]
    assert new["payload"] == old["payload"]
    assert (await end_command(store_of(server), 0)).id.hex == again["internal_id"].replace("-", "")
