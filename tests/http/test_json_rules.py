"""One meaning of `id`, times of RFC 3339 and spans with a unit, in every schema of the API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from holdfast.http.router import Application
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.states import State
from holdfast.ports.store import Store
from holdfast.testing.factories import owner_of
from holdfast.testing.store_actions import do, job_in
from holdfast.webhooks.registry import write_message
from tests.support.json_rules import COUNTS, TIMES, UNITS, broken_rules

OWN_IDS = {"FeedEvent", "ReadEvent", "TokenView", "UploadView", "WebhookView", "WantedWebhook"}
"""Schemas of things that are not jobs and have an id of their own."""
SPANS = {
    *("backoff", "backoff_first", "backoff_max", "deadline", "delay", "expires", "first"),
    *("heartbeat", "host_recovery", "lease", "max", "start_timeout", "timeout"),
}
"""A text with a unit; in a request also seconds."""


def kinds(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Go through what a property may be."""
    for one in schema.get("anyOf", [schema]):
        if one.get("type") != "null":
            yield one


async def properties(http: httpx.AsyncClient) -> list[tuple[str, str, list[dict[str, Any]]]]:
    """List all properties of all schemas: the schema's name, the property's, what it may be."""
    schemas = (await http.get("/openapi.json")).json()["components"]["schemas"]
    return [
        (name, field, list(kinds(one)))
        for name, schema in schemas.items()
        for field, one in schema.get("properties", {}).items()
    ]


async def test_an_id_is_a_jobs_with_the_internal_one_beside_it(http: httpx.AsyncClient) -> None:
    found = await properties(http)
    with_internal = {name for name, field, _ in found if field == "internal_id"}
    with_id = {name for name, field, _ in found if field == "id"}
    assert with_id - with_internal <= OWN_IDS
    assert {"JobView", "Assignment", "DeadLetter", "Why", "Node", "Child"} <= with_id
    for name, field, what in found:
        if field == "internal_id":
            assert [one.get("format") for one in what] == ["uuid"], name
        if field == "job":
            assert [one.get("$ref", "").rpartition("/")[2] for one in what] == ["JobView"], name
        if field == "job_id":
            assert [one.get("type") for one in what] == ["string"], name


async def test_every_time_of_the_schemas_is_a_date_and_every_number_a_count_or_has_a_unit(
    http: httpx.AsyncClient,
) -> None:
    for name, field, what in await properties(http):
        types = {one.get("type") for one in what}
        if field.endswith("_at") or field in TIMES:
            assert [one.get("format") for one in what] == ["date-time"], f"{name}.{field}"
        if types & {"integer", "number"}:
            known = field in COUNTS or field.endswith(UNITS)
            assert known or (field in SPANS and "string" in types), f"{name}.{field}"


async def test_corrected_terms_have_units_in_histories_and_in_the_feed(
    server: Application, http: httpx.AsyncClient
) -> None:
    store: Store = server.state.session.store
    job = await job_in(store, State.CLAIMED, job_id="order-7", policy=Policy(max_attempts=3))
    terms = Policy(max_attempts=2, lease=90_000_000, timeout=1_500_000)
    job = await do(store, job, c.CorrectTerms(actor=owner_of(job), policy=terms))
    for route in ("/v1/jobs/order-7/events", "/v1/jobs/order-7/history", "/v1/events?after=start"):
        events = (await http.get(route)).json()["events"]
        [facts] = [one["facts"] for one in events if one["type"] == "job_terms_corrected"]
        assert (facts["policy"]["lease"], facts["policy"]["timeout"]) == ("90s", "1500ms"), route


async def test_problems_logs_and_webhooks_name_a_job_as_everything_else_does(
    server: Application, http: httpx.AsyncClient
) -> None:
    store: Store = server.state.session.store
    job = await job_in(store, State.FAILED, job_id="order-7")
    problem = (await http.get("/v1/jobs/nobody")).json()
    assert problem["job_id"] == "nobody"
    log = (await http.get(f"/v1/jobs/{job.id}/logs")).json()
    assert (log["job_id"], log["internal_id"]) == ("order-7", str(job.id))
    [*_, event] = await store.events(job.id)
    told = json.loads(write_message(job, event))
    assert (told["data"]["id"], told["data"]["internal_id"]) == ("order-7", str(job.id))
    for answer in (problem, log, told):
        assert broken_rules(answer) == []


async def test_a_worker_elsewhere_names_jobs_as_everything_else_does(
    http: httpx.AsyncClient,
) -> None:
    made = (await http.post("/v1/jobs", json={"task": "t", "job_id": "order-7"})).json()
    session = (await http.post("/v1/worker/sessions", json={})).json()["session"]
    wanted = {"session": session, "request_id": "r"}
    claimed = (await http.post("/v1/worker/claim", json=wanted)).json()
    [job] = claimed["jobs"]
    assert (job["id"], job["internal_id"]) == ("order-7", made["job"]["internal_id"])
    start = {"say": "start", "internal_id": job["internal_id"], "attempt": 1}
    body = {"session": session, "reports": [start]}
    answers = (await http.post("/v1/worker/report", json=body)).json()
    assert answers["reports"][0]["internal_id"] == job["internal_id"]
    for answer in (made, claimed, answers):
        assert broken_rules(answer) == []


@pytest.mark.parametrize(
    "answer",
    [
        {"job": "order-7"},
        {"id": "order-7", "state": "queued"},
        {"made_at": 1_700_000_000_000_000},
        {"until": "2026-11-16 10:00"},
        {"lease": 60_000_000},
        {"jobs": [{"keep": 7}]},
    ],
)
def test_the_rules_are_missed(answer: dict[str, Any]) -> None:
    assert broken_rules(answer)
