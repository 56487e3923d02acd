"""A job's log over HTTP: its lines in order, read on by position, and nobody else's."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from holdfast.client.remote import RemoteOperations
from holdfast.client.transport import Transport, make_headers, make_http
from holdfast.errors import NoSuchJob
from holdfast.http.router import Application
from holdfast.lifecycle.record import JobId
from holdfast.operations.local import LocalOperations
from holdfast.operations.requests import GetLogs
from holdfast.operations.views import LogView
from holdfast.ports.models import LogEntry
from holdfast.testing.store_actions import submit_one


async def logged(server: Application, *messages: str, tenant: str = "mine") -> JobId:
    """Make a job whose handler said something."""
    store = server.state.session.store
    job = await submit_one(store, tenant=tenant)
    await store.keep_logs(
        [
            LogEntry(id=job.id, attempt=2, at=1_700_000_000_000_001, level=20, message=message)
            for message in messages
        ]
    )
    return job.id


async def test_a_log_is_read_line_by_line(server: Application, http: httpx.AsyncClient) -> None:
    job = await logged(server, "one", "two", "three\x1b[2J")
    first = (await http.get(f"/v1/jobs/{job}/logs", params={"limit": 2})).json()["lines"]
    position = first[-1].pop("position")

    assert first[-1] == {
        "attempt": 2,
        "at": "2023-11-14T22:13:20.000001Z",
        "level": 20,
        "message": "two",
    }
    rest = (await http.get(f"/v1/jobs/{job}/logs", params={"after": position})).json()["lines"]
    assert [line["message"] for line in rest] == ["three\x1b[2J"]


async def test_another_tenants_log_is_not_there(
    server: Application, call: Callable[[str | None], httpx.AsyncClient]
) -> None:
    job = await logged(server, "secret", tenant="theirs")

    assert (await call("viewer@mine").get(f"/v1/jobs/{job}/logs")).status_code == 404
    assert (await call("viewer@theirs").get(f"/v1/jobs/{job}/logs")).status_code == 200
    assert (await call("worker@theirs").get(f"/v1/jobs/{job}/logs")).status_code == 403


async def test_no_name_leads_to_another_tenants_log(server: Application) -> None:
    job = await logged(server, "secret", tenant="theirs")
    mine = LocalOperations(server.state.session, name="ann", tenant="mine")
    for name in (job, str(job)):
        with pytest.raises(NoSuchJob):
            await mine.do(GetLogs(job=name))


async def test_a_client_reads_the_same_lines_as_who_has_the_store(server: Application) -> None:
    job = await logged(server, "one", "two")
    headers = make_headers("viewer@mine", None)
    there = make_http("http://test", headers, httpx.ASGITransport(server))
    async with there:
        remote = RemoteOperations(Transport(there, patience_seconds=5.0))
        lines = (await remote.do(GetLogs(job=str(job)))).lines
        request = GetLogs(job=str(job), after=lines[0].position, limit=1)
        rest = (await remote.do(request)).lines
        with pytest.raises(NoSuchJob):
            await remote.do(GetLogs(job="nobody"))

    local = [LogView.of(line) for line in await server.state.session.store.logs(job)]
    assert lines == local
    assert rest == local[1:]
