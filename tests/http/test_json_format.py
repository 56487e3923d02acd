"""One format of times, spans and ids in all that the server answers, and back again."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import httpx
import pytest
from msgspec import Struct

from holdfast.durations import span_micros, span_text
from holdfast.http.router import Application
from holdfast.ids import mint_id
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.record import JobId
from holdfast.lifecycle.states import State
from holdfast.operations.json_format import has_own_format, json_of, read_json_as
from holdfast.operations.views import Depth, PolicyView
from holdfast.ports.store import Store
from holdfast.testing.factories import announcement
from holdfast.testing.store_actions import job_in

MICROSECONDS = 10**14
"""No number of ours is as large as a time in microseconds."""
SPANS = ("backoff_first", "backoff_max", "lease", "heartbeat", "host_recovery")


def values(found: Any, path: str = "$") -> Iterator[tuple[str, str, Any]]:
    """Go through all values of an answer, with their names."""
    if isinstance(found, dict):
        for name, one in found.items():
            yield path, name, one
            yield from values(one, f"{path}.{name}")
    elif isinstance(found, list):
        for one in found:
            yield from values(one, f"{path}[]")


@pytest.fixture
async def job(server: Application, http: httpx.AsyncClient) -> str:
    """A job in the dead letters under a name of its own, beside all else that has times."""
    store: Store = server.state.session.store
    await job_in(store, State.DEAD_LETTERED, job_id="order-7")
    await job_in(store, State.RUNNING, job_id="order-8")
    await store.announce(announcement())
    await http.post("/v1/queues/default/pause", json={"reason": "r"})
    return "order-7"


ROUTES = [
    *("/v1/jobs", "/v1/jobs/{job}", "/v1/jobs/{job}/history", "/v1/jobs/{job}/events"),
    *("/v1/jobs/{job}/result", "/v1/jobs/{job}/why", "/v1/jobs/order-8/why"),
    *("/v1/jobs/{job}/lineage", "/v1/jobs/{job}/history?dialect=B", "/v1/jobs/{job}?dialect=D"),
    *("/v1/events?after=start", "/v1/dead-letters", "/v1/dead-letters/{job}", "/v1/queues"),
    *("/v1/workers", "/v1/stats", "/v1/clock", "/v1/tokens", "/v1/webhooks"),
]


@pytest.mark.parametrize("route", ROUTES)
async def test_times_are_rfc_3339_and_spans_have_a_unit(
    http: httpx.AsyncClient, job: str, route: str
) -> None:
    reply = await http.get(route.format(job=job))
    assert reply.status_code == 200, reply.text
    for path, name, one in values(reply.json()):
        assert not (isinstance(one, int) and one >= MICROSECONDS), f"{path}.{name} is {one}"
        if (name.endswith("_at") or name in ("ts", "now")) and one is not None:
            assert one.endswith("Z"), f"{path}.{name} is {one}"
            assert datetime.fromisoformat(one).tzinfo is not None
        if name in SPANS and path.endswith("policy"):
            assert isinstance(one, str)
            assert one.endswith("s")


@pytest.mark.parametrize(
    "route", ["/v1/jobs/{job}", "/v1/dead-letters/{job}", "/v1/jobs/{job}/why"]
)
async def test_an_id_is_what_a_job_is_asked_for_by(
    http: httpx.AsyncClient, job: str, route: str
) -> None:
    shown = (await http.get(route.format(job=job))).json()
    shown = shown.get("why", shown)
    assert shown["id"] == job
    again = await http.get(f"/v1/jobs/{shown['internal_id']}")
    assert again.json()["id"] == job


async def test_a_policy_is_taken_as_it_is_shown(http: httpx.AsyncClient) -> None:
    terms = {"lease": "90s", "backoff_first": "1500ms", "timeout": 300, "max_attempts": 2}
    made = (await http.post("/v1/jobs", json={"task": "t", "policy": terms})).json()["job"]
    policy = made["policy"]
    assert (policy["lease"], policy["backoff_first"], policy["timeout"]) == (
        "90s",
        "1500ms",
        "300s",
    )
    again = (await http.post("/v1/jobs", json={"task": "t", "policy": policy})).json()["job"]
    assert again["policy"] == policy


@pytest.mark.parametrize("micros", [0, 1, 999, 1000, 1_500, 500_000, 1_000_000, 90_000_001, 10**13])
def test_a_span_is_read_back_as_it_was_written(micros: int) -> None:
    assert span_micros(span_text(micros)) == micros
    policy = Policy(lease=micros, timeout=micros)
    assert PolicyView.of(policy).policy() == policy


class Inner(Struct, kw_only=True, tag="inner"):
    """A struct behind a tag."""

    since: int | None
    by: int
    payload: Any = None


class Outer(Struct, kw_only=True):
    """A struct with all that has a format of its own."""

    id: JobId
    job_id: str
    made_at: int
    inner: list[Inner | None]
    named: dict[str, Inner]


def test_what_was_written_is_read_back() -> None:
    inner = Inner(since=1_700_000_000_123_456, by=1_500_000, payload={"made_at": 7, "id": 8})
    one = Outer(
        id=mint_id(),
        job_id="a",
        made_at=1,
        inner=[inner, None],
        named={"x": Inner(since=None, by=0)},
    )
    shown = json_of(one)
    assert shown["id"] == "a"
    assert shown["internal_id"] == str(one.id)
    assert shown["made_at"] == "1970-01-01T00:00:00.000001Z"
    assert shown["inner"][0]["by"] == "1500ms"
    assert shown["inner"][0]["payload"] == {"made_at": 7, "id": 8}, "what users gave stays"
    assert read_json_as(shown, Outer) == one
    assert has_own_format(Outer)
    assert has_own_format(Depth)
    assert not has_own_format(PolicyView)
