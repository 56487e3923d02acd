"""Who is let in, what is told to whom, and what a request may not be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, cast
from uuid import UUID

import httpx
import pytest

from holdfast.auth.authorization import OF_ALL_TENANTS, SCOPES, Scope, TokenRole
from holdfast.http.endpoints import ENDPOINTS
from holdfast.http.router import Application
from holdfast.operations.local import HANDLERS
from holdfast.operations.requests import ListQueues

OPEN = {"/healthz", "/readyz"}
Call = Callable[[str | None], httpx.AsyncClient]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/jobs": {"task": "t"},
    "/v1/jobs/batch": {"jobs": [{"task": "t"}]},
    "/v1/jobs/{job}/signal": {"name": "go"},
    "/v1/webhooks": {"url": "https://hooks.example/"},
    "/v1/tokens": {"name": "n", "role": "viewer"},
    "/v1/jobs/{job}/resolve": {"step": "s", "happened": True},
    "/v1/worker/claim": {"session": "nobodys.1", "request_id": "r"},
    "/v1/worker/log": {"session": "nobodys.1", "lines": []},
    "/v1/worker/report": {"session": "nobodys.1", "reports": []},
    "/v1/worker/recall": {"session": "nobodys.1", "internal_id": str(UUID(int=0)), "attempt": 1},
}


def routes() -> list[tuple[str, str, Scope]]:
    """List every route with its method and what it demands."""
    found = []
    for endpoint in ENDPOINTS:
        demanded = {kind.scope for kind in endpoint.kinds}
        assert len(demanded) == 1, f"{endpoint.path} demands different scopes"
        assert (None in demanded) is (endpoint.path in OPEN), f"{endpoint.path} declares no scope"
        found += [(endpoint.method, endpoint.path, one) for one in demanded if one is not None]
    return found


def test_every_route_declares_its_scope() -> None:
    assert len(routes()) > 15
    assert {scope for _, _, scope in routes()} >= {Scope.SUBMIT, Scope.READ, Scope.CONTROL}


async def ask(
    http: httpx.AsyncClient, method: str, path: str, job: str, token: str = "0"
) -> httpx.Response:
    """Say a route's simplest request."""
    url = (
        path.replace("{job}", job)
        .replace("{queue}", "q")
        .replace("{webhook}", "known1")
        .replace("{token}", token)
    )
    body = BODIES.get(path, {}) if method == "POST" else None
    return await http.request(method, url, json=body)


@pytest.mark.parametrize(("method", "path", "scope"), routes())
@pytest.mark.parametrize("role", list(TokenRole))
async def test_a_route_takes_a_role_that_covers_it_and_no_other(
    call: Call, method: str, path: str, scope: Scope, role: TokenRole
) -> None:
    made = await call(None).post("/v1/jobs", json={"task": "t", "tenant": "mine"})
    job = made.json()["job_id"]
    hook = {"url": "https://hooks.example/", "id": "known1", "tenant": "mine"}
    await call(None).post("/v1/webhooks", json=hook)
    wanted = {"name": "n", "role": "viewer", "tenant": "mine"}
    token = (await call(None).post("/v1/tokens", json=wanted)).json()["about"]["id"]
    upload = await call(None).post("/v1/uploads", json={"tenant": "mine"})
    path = path.replace("{upload}", upload.json()["id"])
    everywhere = await ask(call(role.value), method, path, job, token)
    at_home = await ask(call(f"{role}@mine"), method, path, job, token)
    covered = scope in SCOPES[role]
    assert (everywhere.status_code != 403) is covered
    assert (at_home.status_code != 403) is (covered and scope not in OF_ALL_TENANTS)
    for reply in (everywhere, at_home):
        assert reply.status_code not in (401, 404, 500), reply.text
    assert (await ask(call("nobody"), method, path, job)).status_code == 401


ON_A_JOB = [one for one in routes() if "{job}" in one[1]]


@pytest.mark.parametrize(("method", "path", "scope"), ON_A_JOB)
async def test_another_tenants_job_is_not_there(
    call: Call, method: str, path: str, scope: Scope
) -> None:
    made = await call("submitter@mine").post("/v1/jobs", json={"task": "t", "job_id": "mine-1"})
    absent = await ask(call("admin@theirs"), method, path, "nobodys")
    for job in ("mine-1", made.json()["job"]["internal_id"]):
        reply = await ask(call("admin@theirs"), method, path, job)
        assert reply.status_code == 404
        if method == "HEAD":
            continue
        # To the letter as if there were no such job.
        assert reply.json() | {"request_id": "", "job_id": "", "detail": ""} == absent.json() | {
            "request_id": "",
            "job_id": "",
            "detail": "",
        }
        assert reply.json()["detail"] == f"no job {job}"


async def test_lists_tell_nothing_of_another_tenant(call: Call) -> None:
    await call("submitter@mine").post("/v1/jobs", json={"task": "t", "queue": "quiet"})
    theirs = call("viewer@theirs")
    assert (await theirs.get("/v1/jobs")).json()["jobs"] == []
    assert (await theirs.get("/v1/jobs", params={"tenant": "mine"})).status_code == 422
    assert (await theirs.get("/v1/queues")).json()["queues"] == []
    assert (await theirs.get("/v1/dead-letters")).json()["letters"] == []


async def test_a_problem_says_what_where_and_what_to_do(http: httpx.AsyncClient) -> None:
    named = {"x-request-id": "mine-7"}
    reply = await http.post("/v1/jobs", json={"task": "t", "labels": {"a": 7}}, headers=named)
    assert reply.headers["content-type"] == "application/problem+json"
    assert reply.headers["x-request-id"] == "mine-7"
    assert reply.json() == {
        "type": "urn:holdfast:error:validation_failed",
        "title": "Invalid input",
        "status": 422,
        "code": "validation_failed",
        "detail": "$.labels[...]: Expected `str`, got `int`",
        "advice": "fix the field named in `detail`",
        "request_id": "mine-7",
        "field": "$.labels[...]",
    }
    unknown = await http.post("/v1/jobs", json={"task": "t", "lables": {}})
    assert "lables" in unknown.json()["detail"]
    assert unknown.json()["field"] == "$.lables"
    for method, path, status in (("GET", "/nix", 404), ("PUT", "/v1/jobs", 405)):
        missing = await http.request(method, path)
        assert (missing.status_code, missing.json()["status"]) == (status, status)


@pytest.mark.parametrize(
    ("body", "field", "detail"),
    [
        ({}, "$.task", "Object missing required field `task`"),
        ({"task": "t", "a - at `b": 1}, "$.a - at `b", "unknown field `a - at `b`"),
        ({"task": "t", "backoff": {"base": 1}}, "$.backoff.base", "$.backoff: Object contains"),
        ({"task": "t", "retries": "3"}, "$.retries", "$.retries: Expected"),
        ([], None, "Expected `object`, got `array`"),
    ],
)
async def test_a_problem_names_the_field(
    http: httpx.AsyncClient, body: Any, field: str | None, detail: str
) -> None:
    reply = (await http.post("/v1/jobs", json=body)).json()
    assert (reply["code"], reply.get("field")) == ("validation_failed", field)
    assert detail in reply["detail"]


@pytest.mark.parametrize(
    "media", [None, "", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
async def test_a_write_takes_json_that_says_so(http: httpx.AsyncClient, media: str | None) -> None:
    """Any other type, or none, a browser sends for any page without asking the server first."""
    headers = {} if media is None else {"content-type": media}
    reply = await http.post("/v1/jobs", content=b'{"task": "t"}', headers=headers)
    assert (reply.status_code, reply.json()["code"]) == (415, "unsupported_media")
    assert "Content-Type: application/json" in reply.json()["detail"]
    for good in ("application/json", "application/json; charset=utf-8", "application/vnd.x+json"):
        reply = await http.post(
            "/v1/jobs", content=b'{"task": "t"}', headers={"content-type": good}
        )
        assert reply.status_code == 201


async def test_a_server_that_ends_keeps_no_connection(
    server: Application, http: httpx.AsyncClient
) -> None:
    assert "connection" not in (await http.get("/healthz")).headers
    server.state.shutdown.start()
    for path in ("/healthz", "/v1/jobs", "/v1/none"):
        assert (await http.get(path)).headers["connection"] == "close"


@pytest.mark.parametrize("path", ["/v1/jobs", "/healthz", "/nothing", "/metrics"])
async def test_no_answer_is_kept_or_guessed_at(http: httpx.AsyncClient, path: str) -> None:
    reply = await http.get(path)
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["cache-control"] == "no-store"


@pytest.mark.parametrize(
    ("method", "path", "known"),
    [
        ("GET", "/v1/jobs?stat=failed", "created_from"),
        ("GET", "/v1/jobs?queue=q&Limit=3", "limit"),
        ("GET", "/v1/dead-letters?reason=x", "error_code"),
        ("GET", "/v1/events?since=1", "after"),
        ("GET", "/v1/stats?x=1", "none"),
        ("POST", "/v1/jobs?wait=30", "none"),
        ("DELETE", "/v1/tokens/abc?force=1", "none"),
    ],
)
async def test_an_unknown_query_parameter_is_refused_with_those_that_are_known(
    http: httpx.AsyncClient, method: str, path: str, known: str
) -> None:
    reply = await http.request(method, path, json={"task": "t"} if method == "POST" else None)
    assert (reply.status_code, reply.json()["code"]) == (422, "validation_failed"), reply.text
    assert "unknown query parameter" in reply.json()["detail"]
    assert known in reply.json()["detail"]


RULES: dict[str, tuple[dict[str, Any], str]] = {
    "an empty task": ({"task": ""}, "task"),
    "a long queue": ({"queue": "q" * 201}, "queue"),
    "a NUL in the tenant": ({"tenant": "a\0b"}, "tenant"),
    "a NUL in a key": ({"dedupe_key": "a\0b"}, "dedupe_key"),
    "no UUID of version 4": ({"client_job_id": "x"}, "client_job_id"),
    "a negative number": ({"step_index": -1}, "step_index"),
    "too many needs": ({"needs": [str(n) for n in range(101)]}, "needs"),
    "an empty need": ({"needs": [""]}, "needs"),
    "a NUL in a label": ({"labels": {"a": "\0"}}, "labels"),
    "large environment": ({"env": {str(n): "x" * 1000 for n in range(20)}}, "env"),
    "no span": ({"delay": "soon"}, "delay"),
    "a negative delay": ({"delay": -1}, "delay"),
    "a long delay": ({"delay": 1e12}, "delay"),
    "a time without its zone": ({"run_at": "2030-01-01T00:00:00"}, "run_at"),
    "two beginnings": ({"run_at": "2030-01-01T00:00:00Z", "delay": 1}, "run_at"),
    "a long deadline": ({"deadline": 1e12}, "deadline"),
    "a deadline without its zone": ({"deadline_at": "2030-01-01T00:00:00"}, "deadline_at"),
    "two deadlines": ({"deadline_at": "2030-01-01T00:00:00Z", "deadline": 1}, "deadline_at"),
    "negative retries": ({"retries": -1}, "retries"),
    "many retries": ({"retries": 10**7}, "retries"),
    "a backoff that shrinks": ({"backoff": {"factor": 0.5}}, "backoff"),
    "no span of a backoff": ({"backoff": "soon"}, "backoff"),
    "no time at all": ({"timeout": 0}, "timeout"),
    "no time to start": ({"start_timeout": "never"}, "start_timeout"),
    "a short lease": ({"policy": {"lease": 1}}, "policy.lease"),
    "a backoff below zero": ({"policy": {"backoff_max": -1}}, "policy.backoff_max"),
    "unique without a key": ({"unique": "live"}, "dedupe_key"),
    "no such parent": ({"parent": "nobody"}, "parent"),
    "no object": ({"args": [1]}, "args"),
    "a large number": ({"args": {"n": 10**30}}, "args"),
    "a missing argument": ({"task": "resize"}, "args.image"),
    "an unknown argument": ({"task": "resize", "args": {"image": "a", "x": 1}}, "args.x"),
    "a wrong argument": ({"task": "resize", "args": {"image": 7}}, "args.image"),
}


@pytest.mark.parametrize("wrong", RULES)
async def test_a_problem_names_the_field_whose_value_breaks_a_rule(
    http: httpx.AsyncClient, wrong: str
) -> None:
    said, field = RULES[wrong]
    body = {"task": "t"} | said
    alone = (await http.post("/v1/jobs", json=body)).json()
    assert (alone["status"] // 100, alone.get("field")) == (4, f"$.{field}"), alone
    many = (await http.post("/v1/jobs/batch", json={"jobs": [{"task": "t"}, body]})).json()["jobs"]
    assert many[0]["accepted"] is not None
    assert many[1]["problem"].get("field") == f"$.jobs[1].{field}", many[1]
    assert many[1]["problem"]["detail"] == alone["detail"]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/jobs/one/cancel", {"reason": "r" * 5_000}, "reason"),
        ("/v1/jobs/one/signal", {"name": ""}, "name"),
        ("/v1/jobs/one/signal", {"name": "holdfast:mine"}, "name"),
        ("/v1/jobs/one/signal", {"name": "go", "payload": 10**30}, "payload"),
        ("/v1/jobs/one/resolve", {"step": "", "happened": True}, "step"),
        ("/v1/jobs/one/resolve", {"step": "s", "happened": True, "result": 10**30}, "result"),
        ("/v1/worker/claim", {"session": "root.1", "request_id": "\0"}, "request_id"),
        ("/v1/worker/claim", {"session": "\0", "request_id": "r"}, "session"),
        ("/v1/worker/claim", {"session": "root.1", "request_id": "r", "queues": ["\0"]}, "queues"),
    ],
)
async def test_a_problem_names_the_field_of_a_change_and_of_a_claim(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], field: str
) -> None:
    await http.post("/v1/jobs", json={"task": "t", "job_id": "one"})
    reply = await http.post(path, json=body)
    assert (reply.status_code, reply.json().get("field")) == (422, f"$.{field}"), reply.text


async def test_a_problem_names_no_field_that_it_is_not_about(http: httpx.AsyncClient) -> None:
    first = {"task": "t", "job_id": "one"}
    await http.post("/v1/jobs", json=first)
    taken = await http.post("/v1/jobs", json=first | {"queue": "other"})
    long_key = await http.post("/v1/jobs", json=first, headers={"idempotency-key": "k" * 201})
    for reply, status in ((taken, 409), (long_key, 422)):
        assert (reply.status_code, "field" in reply.json()) == (status, False), reply.text


async def test_an_error_of_ours_tells_nothing_of_the_inside(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("secret")

    monkeypatch.setitem(cast("dict[Any, Any]", HANDLERS), ListQueues, broken)
    reply = await http.get("/v1/queues")
    assert (reply.status_code, reply.json()["code"]) == (500, "server_failed")
    assert "secret" not in reply.text
    assert reply.json()["request_id"] in caplog.text
    assert reply.headers["x-request-id"] == reply.json()["request_id"]


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        pytest.param(b"", {}, 422, id="empty"),
        pytest.param(b"{", {}, 422, id="torn"),
        pytest.param(b"[" * 100_000, {}, 422, id="deep"),
        pytest.param(
            b'{"task":"t","args":' + b"[" * 90_000 + b"]" * 90_000 + b"}", {}, 422, id="deep-args"
        ),
        pytest.param(b'{"task":"t","args":{"a":NaN}}', {}, 422, id="nan"),
        pytest.param(b'{"task":"t","args":{"a":1,"a":2}}', {}, 422, id="twice"),
        pytest.param(b'{"task":"t","args":{"a":1' + b"0" * 5000 + b"}}", {}, 422, id="huge-number"),
        pytest.param(rb'{"task":"a\u0000b"}', {}, 422, id="nul"),
        pytest.param(rb'{"task":"t","args":{"a":"\ud800"}}', {}, 422, id="surrogate"),
        pytest.param(b'{"task":"t"}', {"content-encoding": "gzip"}, 415, id="gzip"),
        pytest.param(b'{"task":"t"}', {"content-type": "text/plain"}, 415, id="no-json"),
        pytest.param(b" " * 200_001, {}, 413, id="large"),
    ],
)
async def test_a_hostile_body_is_refused_and_nothing_is_written(
    http: httpx.AsyncClient, body: bytes, headers: dict[str, str], status: int
) -> None:
    reply = await http.post(
        "/v1/jobs", content=body, headers={"content-type": "application/json", **headers}
    )
    assert reply.status_code == status, reply.text
    assert reply.json()["status"] == status
    assert (await http.get("/v1/jobs")).json()["jobs"] == []


async def test_a_body_that_drips_is_given_up(http: httpx.AsyncClient) -> None:
    async def dripping() -> AsyncIterator[bytes]:
        yield b'{"task":'
        await asyncio.sleep(2)
        yield b'"t"}'

    slow = await http.post(
        "/v1/jobs", content=dripping(), headers={"content-type": "application/json"}
    )
    assert (slow.status_code, slow.json()["code"]) == (408, "too_slow")

    async def flooding() -> AsyncIterator[bytes]:
        for _ in range(1000):
            yield b" " * 1000

    large = await http.post(
        "/v1/jobs", content=flooding(), headers={"content-type": "application/json"}
    )
    assert large.status_code == 413
