"""Which routes are answered without the framework's detour, and that they answer alike."""

from __future__ import annotations

import httpx
import pytest
from fastapi import FastAPI

from holdfast.http import events, jobs, queues
from holdfast.http.express import Express, direct
from holdfast.http.server import ROUTERS


def test_only_routes_that_take_nothing_but_a_body_are_answered_directly() -> None:
    places = {place for router in ROUTERS for place, _ in direct(router)}
    assert {("POST", "/v1/jobs"), ("POST", "/v1/jobs/batch"), ("GET", "/v1/queues")} <= places
    # These take a query, a path, or let everybody in.
    for place in (("GET", "/v1/jobs"), ("GET", "/v1/events"), ("GET", "/v1/workers")):
        assert place not in places
    assert not any("{" in path or path.endswith("z") for _, path in places)
    assert not dict(direct(events.router))
    assert len(dict(direct(queues.router))) < len(queues.router.routes)
    assert dict(direct(jobs.router))["POST", "/v1/jobs"][1].endpoint is jobs.submit_job


@pytest.mark.parametrize("who", [None, "viewer@mine", "nobody", "submitter@mine"])
@pytest.mark.parametrize("body", [b'{"task":"t","job_id":"j"}', b'{"task":7}', b"{", b""])
async def test_a_direct_answer_is_the_frameworks_own(
    server: FastAPI, monkeypatch: pytest.MonkeyPatch, who: str | None, body: bytes
) -> None:
    headers = {"content-type": "application/json", "x-request-id": "same"}
    if who is not None:
        headers["authorization"] = f"Bearer {who}"

    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(server)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.post("/v1/jobs", content=body, headers=headers)

    async def by_the_framework(self: Express, *given: object) -> None:
        await self._app(*given)  # type: ignore[arg-type]

    await asked()
    direct_answer = await asked()
    monkeypatch.setattr(Express, "__call__", by_the_framework)
    detour = await asked()
    assert (direct_answer.status_code, direct_answer.json()) == (detour.status_code, detour.json())
    assert direct_answer.headers == detour.headers
