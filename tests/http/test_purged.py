"""What HTTP answers about a job that retention removed whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from holdfast.flow.purge import PurgeTerms, purge_all
from holdfast.http.router import Application
from holdfast.testing.factories import JANITOR

Call = Callable[[str | None], httpx.AsyncClient]


@pytest.fixture
async def purged(server: Application, call: Call) -> dict[str, Any]:
    """A job of tenant `mine` that was purged, as its submitter saw it last."""
    mine = call("operator@mine")
    receipt = (await mine.post("/v1/jobs", json={"task": "other", "job_id": "order-7"})).json()
    ended = await mine.post("/v1/jobs/order-7/cancel", json={})
    assert ended.json()["state"] == "cancelled"
    # SQLite keeps the job of the newest event, so there is a newer one.
    await mine.post("/v1/jobs", json={"task": "newest"})
    store = server.state.session.store
    report = None
    while report is None or report.kept:
        report = await purge_all(store, JANITOR, PurgeTerms(succeeded=None, unsuccessful=0))
        await mine.post("/v1/jobs", json={"task": "newest"})
    job: dict[str, Any] = receipt["job"]
    return job


@pytest.mark.parametrize("name", ["id", "internal_id"])
@pytest.mark.parametrize("path", ["", "/history", "/result", "/why", "/progress", "/logs"])
async def test_a_purged_job_is_answered_410_wherever_it_is_read(
    call: Call, purged: dict[str, Any], path: str, name: str
) -> None:
    reply = await call("viewer@mine").get(f"/v1/jobs/{purged[name]}{path}")
    assert reply.status_code == 410
    problem = reply.json()
    assert (problem["code"], problem["status"]) == ("job_purged", 410)
    assert "was purged at 2" in problem["detail"]


@pytest.mark.parametrize("verb", ["cancel", "hold", "unhold"])
async def test_a_purged_job_is_answered_410_wherever_it_is_changed(
    call: Call, purged: dict[str, Any], verb: str
) -> None:
    reply = await call("operator@mine").post(f"/v1/jobs/{purged['id']}/{verb}", json={})
    assert (reply.status_code, reply.json()["code"]) == (410, "job_purged")


async def test_a_purged_job_of_another_tenant_never_was(call: Call, purged: dict[str, Any]) -> None:
    for name in (purged["id"], purged["internal_id"]):
        reply = await call("viewer@other").get(f"/v1/jobs/{name}")
        assert (reply.status_code, reply.json()["code"]) == (404, "no_such_job")


async def test_the_job_id_of_a_purged_job_is_never_given_again(
    call: Call, purged: dict[str, Any]
) -> None:
    wanted = {"task": "other", "job_id": purged["id"]}
    reply = await call("operator@mine").post("/v1/jobs", json=wanted)
    assert (reply.status_code, reply.json()["code"]) == (410, "job_purged")
    assert "use a new one" in reply.json()["detail"]
    assert (await call("operator@other").post("/v1/jobs", json=wanted)).status_code == 201
