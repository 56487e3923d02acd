"""Long and large histories: read in pages, with bodies of about one page in memory at a time."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import httpx
import pytest

from holdfast.http.router import Application
from holdfast.lifecycle.record import JobId
from holdfast.ports.store import Store
from holdfast.queries import history as history_module
from tests.http.listening import listening

LARGE = "x" * 1000


@pytest.fixture
def store(server: Application) -> Store:
    """The store behind the server."""
    found: Store = server.state.session.store
    return found


@pytest.fixture
def asked(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the store was asked for of events, with pages of 2,500 bytes."""
    monkeypatch.setattr(history_module, "PAGE_BYTES", 2500)
    monkeypatch.setattr("holdfast.http.sse.PAGE_BYTES", 2500)
    seen: list[dict[str, Any]] = []
    inner = store.events

    async def events(id: Any, **wishes: Any) -> Any:
        found = await inner(id, **wishes)
        seen.append({**wishes, "bytes": sum(len(event.body or b"") for event in found)})
        return found

    monkeypatch.setattr(store, "events", events)
    return seen


@pytest.fixture
async def job(http: httpx.AsyncClient) -> str:
    """A job with ten large signals."""
    made = await http.post("/v1/jobs", json={"task": "t", "delay": "1h"})
    job = str(made.json()["job_id"])
    for number in range(10):
        signal = {"name": f"s{number}", "payload": LARGE}
        assert (await http.post(f"/v1/jobs/{job}/signal", json=signal)).status_code == 200
    return job


@pytest.mark.parametrize("route", ["history", "events"])
async def test_a_large_history_comes_in_pages(
    http: httpx.AsyncClient, asked: list[dict[str, Any]], job: str, route: str
) -> None:
    revs: list[int] = []
    after: int | None = 0
    pages = 0
    while after is not None:
        page = (await http.get(f"/v1/jobs/{job}/{route}", params={"after": after})).json()
        revs += [event["rev"] for event in page["events"]]
        after = page["next"]
        pages += 1
    assert revs == list(range(1, 12))
    assert pages == 4
    assert max(one["bytes"] for one in asked) < 2500 + 1002 + 100


async def test_a_stream_of_a_large_history_reads_it_in_pages(
    server: Application, asked: list[dict[str, Any]], job: str
) -> None:
    async with listening(server, f"/v1/jobs/{job}/events") as listener:
        events = await listener.events(11)
    assert [event["rev"] for event in events] == list(range(1, 12))
    assert max(one["bytes"] for one in asked) < 2500 + 1002 + 100


@pytest.mark.parametrize("path", ["", "/history"])
async def test_a_dialect_reads_the_whole_history_in_pages(
    http: httpx.AsyncClient, asked: list[dict[str, Any]], job: str, path: str
) -> None:
    assert (await http.post(f"/v1/jobs/{job}/cancel", json={})).status_code == 200
    told = (await http.get(f"/v1/jobs/{job}{path}", params={"dialect": "E"})).json()
    assert "Cancelled" in str(told)
    assert max(one["bytes"] for one in asked) < 2500 + 1002 + 100


async def test_a_dialect_keeps_no_bodies(store: Store, job: str) -> None:
    [record] = await store.get([JobId(UUID(job))])
    assert record is not None
    events = await history_module.read_events_without_bodies(store, record, 1000)
    assert [event.rev for event in events] == list(range(1, 12))
    assert {event.body for event in events} == {None}


async def test_a_history_too_long_for_a_dialect_says_so(
    http: httpx.AsyncClient, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.operations.read_jobs.DIALECT_EVENTS", 5)
    reply = await http.get(f"/v1/jobs/{job}/history", params={"dialect": "E"})
    assert (reply.status_code, reply.json()["code"]) == (409, "history_too_long")


async def test_a_repeated_request_is_found_without_reading_the_history(
    http: httpx.AsyncClient, asked: list[dict[str, Any]], job: str
) -> None:
    asked.clear()
    key = {"idempotency-key": "once"}
    for _ in range(2):
        reply = await http.post(f"/v1/jobs/{job}/signal", json={"name": "go"}, headers=key)
        assert reply.status_code == 200
    assert asked == []
    page = (await http.get(f"/v1/jobs/{job}/history", params={"after": 11})).json()
    assert [event["rev"] for event in page["events"]] == [12]


async def test_scans_of_the_feed_take_turns(
    http: httpx.AsyncClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looks for rare events reads everybody's: many such readers cost what one costs."""
    monkeypatch.setattr("holdfast.http.feed.PAGE_EVENTS", 5)
    for _ in range(4):
        await http.post("/v1/jobs/batch", json={"jobs": [{"task": "t", "tenant": "other"}] * 10})
    under_way = most = pages = 0
    inner = store.tail

    async def tail(cursor: str | None, **wishes: Any) -> Any:
        nonlocal under_way, most, pages
        if cursor is None:
            return await inner(cursor, **wishes)
        under_way += 1
        pages += 1
        most = max(most, under_way)
        try:
            await asyncio.sleep(0)
            return await inner(cursor, **wishes)
        finally:
            under_way -= 1

    monkeypatch.setattr(store, "tail", tail)
    wish: dict[str, str] = {"after": "start", "type": "dead_letter_discarded", "limit": "5"}
    callers = [{"authorization": f"Bearer viewer@{tenant}"} for tenant in "abcdefgh"]
    replies = await asyncio.gather(
        *(http.get("/v1/events", params=wish, headers=caller) for caller in callers)
    )
    assert {reply.status_code for reply in replies} == {200}
    assert pages >= 8 * 7
    assert most == 1


async def test_one_token_has_few_scans_of_the_feed_under_way(
    http: httpx.AsyncClient, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await http.post("/v1/jobs", json={"task": "t", "tenant": "b"})
    go_on, inner = asyncio.Event(), store.tail

    async def tail(cursor: str | None, **wishes: Any) -> Any:
        await go_on.wait()
        return await inner(cursor, **wishes)

    monkeypatch.setattr(store, "tail", tail)
    wish = {"after": "start", "type": "dead_letter_discarded"}
    mine, other = {"authorization": "Bearer viewer@b"}, {"authorization": "Bearer viewer@a"}

    async def scan(who: dict[str, str]) -> httpx.Response:
        return await http.get("/v1/events", params=wish, headers=who)

    first = [asyncio.create_task(scan(mine)) for _ in range(5)]
    done, _ = await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
    assert [one.result().status_code for one in done] == [429]
    theirs = asyncio.create_task(scan(other))
    await asyncio.sleep(0)
    go_on.set()
    replies = await asyncio.gather(*first, theirs)
    assert sorted(reply.status_code for reply in replies) == [200] * 5 + [429]
