"""Whether the server lives, whether it can serve, and its numbers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx
import pytest

from holdfast.errors import StoreReplaced
from holdfast.http import health
from holdfast.http.request import ServerState
from holdfast.http.router import Application


@pytest.mark.req("B22")
async def test_requests_are_counted_by_route_never_by_what_was_asked(
    http: httpx.AsyncClient,
) -> None:
    made = await http.post("/v1/jobs", json={"task": "t"})
    for _ in range(3):
        await http.get(f"/v1/jobs/{made.json()['job_id']}")
    for path in ("/v1/jobs/nix", "/wp-login.php", "/v1/jobs/nix/nix/nix"):
        assert (await http.get(path)).status_code == 404
    for path in ("/v1/jobs", "/v1/jobs/nix", "/v1/jobs/batch", "/openapi.json"):
        assert (await http.put(path)).status_code == 405
    await http.get("/openapi.json")
    text = (await http.get("/metrics")).text
    for line in (
        'holdfast_http_requests_total{route="/v1/jobs/{job}",status="200"} 3.0',
        'holdfast_http_requests_total{route="/v1/jobs/{job}",status="404"} 1.0',
        'holdfast_http_requests_total{route="/v1/jobs",status="201"} 1.0',
        'holdfast_http_requests_total{route="other",status="404"} 2.0',
        'holdfast_http_requests_total{route="/v1/jobs",status="405"} 1.0',
        'holdfast_http_requests_total{route="/v1/jobs/{job}",status="405"} 1.0',
        'holdfast_http_requests_total{route="/v1/jobs/batch",status="405"} 1.0',
        'holdfast_http_requests_total{route="other",status="405"} 1.0',
        'holdfast_http_requests_total{route="other",status="200"} 1.0',
        'holdfast_http_request_seconds_count{route="/v1/jobs/{job}"} 5.0',
        "holdfast_http_requests_under_way 1.0",
    ):
        assert line in text.splitlines(), line
    assert "wp-login" not in text
    assert "openapi" not in text


async def test_metrics_are_for_whoever_may_see_all_tenants(
    call: Callable[[str | None], httpx.AsyncClient],
) -> None:
    for who, status in (("viewer", 200), ("viewer@mine", 403), ("submitter", 403)):
        assert (await call(who).get("/metrics")).status_code == status


async def test_a_part_that_has_been_silent_for_too_long_is_named(
    server: Application, http: httpx.AsyncClient
) -> None:
    state: ServerState = server.state
    assert (await http.get("/healthz")).json()["status"] == "alive"
    state.meters.pulse("loop", limit_seconds=-1)
    told = await http.get("/healthz")
    assert (told.status_code, list(told.json()["silent"])) == (503, ["loop"])


async def test_a_server_that_is_about_to_end_is_not_ready(
    server: Application, http: httpx.AsyncClient
) -> None:
    state: ServerState = server.state
    assert (await http.get("/readyz")).json()["status"] == "ready"
    state.shutdown.start()
    told = await http.get("/readyz")
    assert (told.status_code, told.json()["code"]) == (503, "server_ending")


async def test_a_database_that_does_not_answer_is_not_waited_for(
    server: Application, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    state: ServerState = server.state
    monkeypatch.setattr(health, "READY_SECONDS", 0.01)
    with monkeypatch.context() as away:
        away.setattr(state.session.store, "clock", never)
        told = await http.get("/readyz")
    assert (told.status_code, told.json()["code"]) == (503, "store_unavailable")


async def test_a_server_whose_sqlite_file_was_replaced_is_not_ready(
    server: Application, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def replaced() -> None:
        raise StoreReplaced("the SQLite file holdfast.db was replaced while it was open")

    state: ServerState = server.state
    with monkeypatch.context() as gone:
        gone.setattr(state.session.store, "clock", replaced)
        answer = await http.get("/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "store_replaced")


async def test_whoever_waits_for_long_hears_of_the_servers_end(
    server: Application, http: httpx.AsyncClient
) -> None:
    state: ServerState = server.state
    made = await http.post("/v1/jobs", json={"task": "t", "delay": "1h"})
    url = f"/v1/jobs/{made.json()['job_id']}/result"
    waiting = asyncio.create_task(http.get(url, params={"wait": 50}))
    while not state.session.watcher._waiting:  # noqa: ASYNC110  nobody tells of it
        await asyncio.sleep(0)
    state.shutdown.start()
    # Far less than it asked for: else it would only have waited to its end.
    async with asyncio.timeout(25):
        assert (await waiting).status_code == 202
