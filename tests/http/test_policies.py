"""Policies and approvals over HTTP: who may, whose jobs, once, and what is shown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast.auth.tokens import TokenRegistry, TokenRole, WantedToken
from holdfast.http.app import make_server
from holdfast.http.authentication import TokenAuthenticator
from holdfast.http.router import Application
from holdfast.ports.store import Store
from holdfast.stores.postgres.migrate import migrate
from holdfast.wiring import make_store, read_address
from tests.support.policies import ALLOW, TWO_PEOPLE
from tests.support.postgres import PostgresCluster

Call = Callable[[str | None], httpx.AsyncClient]


async def apply(http: httpx.AsyncClient, text: str | None = TWO_PEOPLE) -> dict[str, Any]:
    """Apply rules as an admin."""
    reply = await http.post("/v1/policy", json={"text": text, "reason": "a test"})
    assert reply.status_code == 200, reply.text
    applied: dict[str, Any] = reply.json()
    return applied


async def submit(http: httpx.AsyncClient, task: str, job_id: str) -> dict[str, Any]:
    """Submit a job."""
    reply = await http.post("/v1/jobs", json={"task": task, "job_id": job_id})
    assert reply.status_code == 201, reply.text
    job: dict[str, Any] = reply.json()["job"]
    return job


@pytest.mark.req("A13")
async def test_what_is_applied_judges_and_is_shown_with_who_applied_it(
    http: httpx.AsyncClient,
) -> None:
    assert (await http.get("/v1/policy")).json()["digest"] is None
    applied = await apply(http)
    shown = (await http.get("/v1/policy")).json()
    assert shown == applied
    assert (shown["text"], shown["applied_by"], shown["is_current"]) == (
        TWO_PEOPLE,
        "control:root",
        True,
    )
    assert (await submit(http, "rm.all", "gone"))["state"] == "denied"
    assert (await submit(http, "mail", "fine"))["state"] == "queued"
    await apply(http, None)
    assert (await submit(http, "rm.all", "kept"))["state"] == "queued"
    before = (await http.get("/v1/policy", params={"digest": applied["digest"]})).json()
    assert (before["text"], before["is_current"]) == (TWO_PEOPLE, False)
    history = (await http.get("/v1/policy/history")).json()["events"]
    assert [one["type"] for one in history] == ["removed", "applied"]


async def test_only_an_admin_of_all_tenants_applies_rules(
    http: httpx.AsyncClient, call: Call
) -> None:
    for who in ("operator", "approver", "viewer", "submitter", "admin@a"):
        reply = await call(who).post("/v1/policy", json={"text": ALLOW})
        assert reply.status_code == 403, who
    assert (await http.get("/v1/policy")).json()["digest"] is None
    for who, status in (("viewer", 200), ("operator", 200), ("submitter", 403), ("viewer@a", 403)):
        assert (await call(who).get("/v1/policy")).status_code == status, who


async def test_rules_that_cannot_be_read_are_refused_with_their_line(
    http: httpx.AsyncClient,
) -> None:
    applied = await apply(http)
    reply = await http.post("/v1/policy", json={"text": ALLOW + '[[rule]]\nid = "x"\n'})
    assert (reply.status_code, reply.json()["code"]) == (422, "bad_policy")
    assert ":3: rule x: then is missing" in reply.json()["detail"]
    assert (await http.get("/v1/policy")).json()["digest"] == applied["digest"]
    assert (await http.get("/v1/policy", params={"digest": "00"})).status_code == 404


@pytest.mark.req("A13")
async def test_a_job_needs_as_many_people_as_its_rule_says_and_never_its_submitter(
    http: httpx.AsyncClient, call: Call
) -> None:
    await apply(http)
    ann, ben, cleo = call("operator@a"), call("admin@a"), call("approver@a")
    job = await submit(ann, "deploy.web", "web")
    assert (job["state"], job["approval"]["missing"], job["approval"]["rule"]) == (
        "pending",
        2,
        "prod",
    )
    own = await ann.post("/v1/jobs/web/approve", json={})
    assert (own.status_code, own.json()["code"]) == (409, "approver_is_submitter")
    first = await ben.post("/v1/jobs/web/approve", json={"reason": "looks good"})
    assert (first.status_code, first.json()["approval"]["missing"]) == (200, 1)
    again = await ben.post("/v1/jobs/web/approve", json={})
    assert (again.status_code, again.json()["code"]) == (409, "already_approved")
    [listed] = (await cleo.get("/v1/approvals")).json()["approvals"]
    assert (listed["job_id"], listed["needs"], listed["missing"]) == ("web", 2, 1)
    assert (listed["rule"], listed["reason"]) == ("prod", "prod needs two people")
    assert listed["submitter"] == "gateway:operator-of-a"
    assert [(one["by"], one["reason"]) for one in listed["approvals"]] == [
        ("control:admin-of-a", "looks good")
    ]
    second = await cleo.post("/v1/jobs/web/approve", json={})
    assert (second.status_code, second.json()["state"]) == (200, "queued")
    assert (await cleo.get("/v1/approvals")).json()["approvals"] == []


async def test_a_denied_job_says_who_denied_it(http: httpx.AsyncClient, call: Call) -> None:
    await apply(http)
    await submit(http, "deploy.web", "web")
    denied = await call("approver").post("/v1/jobs/web/deny", json={"reason": "not today"})
    assert (denied.json()["state"], denied.json()["error_code"]) == ("denied", "denied_by_person")
    late = await call("operator").post("/v1/jobs/web/approve", json={})
    assert (late.status_code, late.json()["code"]) == (409, "no_approval_awaited")
    explained = (await http.get("/v1/jobs/web/policy")).json()
    last = explained["decisions"][-1]
    assert (last["verdict"], last["reason"]) == ("deny", "not today")
    assert last["actor"] == "control:approver-of-"


async def test_an_approval_is_of_the_revision_that_was_seen(
    http: httpx.AsyncClient, call: Call
) -> None:
    await apply(http)
    job = await submit(http, "deploy.web", "web")
    seen = {"if-match": f'"{job["rev"]}"'}
    ben, cleo = call("approver"), call("operator")
    assert (await ben.post("/v1/jobs/web/approve", json={}, headers=seen)).status_code == 200
    stale = await cleo.post("/v1/jobs/web/approve", json={}, headers=seen)
    assert stale.status_code == 412
    assert (await cleo.post("/v1/jobs/web/deny", json={}, headers=seen)).status_code == 412


@pytest.mark.req("A13")
async def test_an_approval_whose_answer_was_lost_counts_once(
    http: httpx.AsyncClient, call: Call
) -> None:
    await apply(http)
    await submit(http, "deploy.web", "web")
    ben, key = call("approver"), {"idempotency-key": "click-1"}
    first = await ben.post("/v1/jobs/web/approve", json={}, headers=key)
    again = await ben.post("/v1/jobs/web/approve", json={}, headers=key)
    assert (first.status_code, again.status_code) == (200, 200)
    assert again.json()["approval"]["missing"] == 1
    history = (await http.get("/v1/jobs/web/history")).json()["events"]
    assert [one["type"] for one in history].count("job_approved") == 1


async def test_of_people_who_click_at_once_each_counts_once(
    http: httpx.AsyncClient, call: Call
) -> None:
    await apply(http)
    await submit(http, "deploy.web", "web")
    people = [call(f"{role}@default") for role in ("approver", "operator", "admin")]
    replies = await asyncio.gather(*(one.post("/v1/jobs/web/approve", json={}) for one in people))
    assert sorted(reply.status_code for reply in replies) == [200, 200, 409]
    assert (await http.get("/v1/jobs/web")).json()["state"] == "queued"


async def test_a_tenant_sees_and_approves_its_own_jobs_alone(
    http: httpx.AsyncClient, call: Call
) -> None:
    await apply(http)
    job = await submit(call("submitter@a"), "deploy.web", "web")
    other = call("operator@b")
    assert (await other.get("/v1/approvals")).json()["approvals"] == []
    for path in ("approve", "deny"):
        reply = await other.post(f"/v1/jobs/{job['internal_id']}/{path}", json={})
        assert reply.status_code == 404
    assert (await other.get(f"/v1/jobs/{job['internal_id']}/policy")).status_code == 404
    looks = (await call("operator@a").get("/v1/jobs/web/policy")).json()["looks"]
    # Not the rules before: they may be about other tenants.
    assert [one["rule"] for one in looks] == ["prod"]
    looks = (await http.get(f"/v1/jobs/{job['internal_id']}/policy")).json()["looks"]
    assert [(one["rule"], one["matched"]) for one in looks] == [("no-rm", False), ("prod", True)]


async def test_a_submitter_does_not_lift_what_a_rule_holds(
    http: httpx.AsyncClient, call: Call
) -> None:
    await apply(http)
    job = await submit(call("submitter@a"), "odd.job", "odd")
    assert job["held_by"] == ["policy-hold:look"]
    lift = {"hold": "policy-hold:look"}
    refused = await call("submitter@a").post("/v1/jobs/odd/unhold", json=lift)
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    lifted = await call("approver@a").post("/v1/jobs/odd/unhold", json=lift)
    assert lifted.status_code == 403
    assert (await call("operator@a").post("/v1/jobs/odd/unhold", json=lift)).status_code == 200


async def test_what_was_limited_is_shown_with_what_was_asked(http: httpx.AsyncClient) -> None:
    await apply(http)
    await submit(http, "long.job", "long")
    explained = (await http.get("/v1/jobs/long/policy")).json()
    assert [(one["verdict"], one["rule"]) for one in explained["decisions"]] == [("allow", "short")]
    assert explained["asked"]["retries"] == 3
    assert explained["rules"] == (await http.get("/v1/policy")).json()["digest"]


@pytest.fixture(scope="session")
def postgres_template(postgres_cluster: PostgresCluster) -> str:
    """A migrated, empty database."""
    return postgres_cluster.make_template("policies", lambda url: asyncio.run(migrate(url)))


@pytest.fixture(params=["sqlite", "postgres"])
async def guarded(
    request: pytest.FixtureRequest, sqlite_path: Path
) -> AsyncIterator[tuple[Application, Store]]:
    """A server of either engine that takes tokens."""
    place = str(sqlite_path)
    if request.param == "postgres":
        place = str(request.getfixturevalue("postgres_url"))
    store = make_store(read_address(place))
    app = make_server(store, TokenAuthenticator(store, fresh_seconds=0))
    async with app.lifespan_context(app):
        yield app, store


@pytest.mark.req("A13")
async def test_two_tokens_of_one_name_are_one_person_and_a_revoked_one_is_nobody(
    guarded: tuple[Application, Store],
) -> None:
    app, store = guarded
    registry = TokenRegistry(store, actor="control:root")

    async def person(name: str, role: TokenRole) -> tuple[httpx.AsyncClient, str]:
        made = await registry.create(WantedToken(name=name, role=role))
        headers = {"authorization": f"Bearer {made.token}"}
        transport = httpx.ASGITransport(app)
        client = httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers)
        return client, made.about.id

    ann, _ = await person("ann", TokenRole.ADMIN)
    await apply(ann)
    await submit(ann, "deploy.web", "web")
    ann_again, _ = await person("ann", TokenRole.OPERATOR)
    own = await ann_again.post("/v1/jobs/web/approve", json={})
    assert (own.status_code, own.json()["code"]) == (409, "approver_is_submitter")
    ben, token = await person("ben", TokenRole.APPROVER)
    assert (await ben.post("/v1/jobs/web/approve", json={})).status_code == 200
    again, _ = await person("ben", TokenRole.OPERATOR)
    assert (await again.post("/v1/jobs/web/approve", json={})).json()["code"] == "already_approved"
    await registry.revoke(token)
    assert (await ben.post("/v1/jobs/web/deny", json={})).status_code == 401
    cleo, _ = await person("cleo", TokenRole.APPROVER)
    assert (await cleo.post("/v1/jobs/web/approve", json={})).json()["state"] == "queued"
    for client in (ann, ann_again, ben, again, cleo):
        await client.aclose()
