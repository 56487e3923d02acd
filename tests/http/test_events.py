"""Events over HTTP: of one job and of all, in pages and as they come, without a gap."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from holdfast.errors import Unauthorized
from holdfast.http import feed as feeding
from holdfast.http.router import Application
from holdfast.http.sse import EventStreams, Pace
from tests.http.listening import Listener, listening
from tests.http.test_jobs import submitted

Call = Callable[[str | None], httpx.AsyncClient]


def live(server: Application) -> EventStreams:
    """What listens to the server."""
    found: EventStreams = server.state.streams
    return found


async def signalled(http: httpx.AsyncClient, job: str, *names: str) -> None:
    """Send a job signals, one after the other."""
    for name in names:
        reply = await http.post(f"/v1/jobs/{job}/signal", json={"name": name})
        assert reply.status_code == 200, reply.text


def revs(events: list[Any]) -> list[int]:
    return [event["rev"] for event in events]


async def test_a_jobs_events_are_read_page_by_page(http: httpx.AsyncClient) -> None:
    job = (await submitted(http, correlation_id="c1"))["id"]
    await signalled(http, job, "a", "b", "c")
    first = (await http.get(f"/v1/jobs/{job}/events", params={"limit": 3})).json()
    assert (revs(first["events"]), first["next"]) == ([1, 2, 3], 3)
    rest = (await http.get(f"/v1/jobs/{job}/events", params={"after": 3})).json()
    assert (revs(rest["events"]), rest["next"]) == ([4], None)
    whole = (await http.get(f"/v1/jobs/{job}/history")).json()["events"]
    assert first["events"] + rest["events"] == whole


async def test_a_jobs_stream_tells_all_of_it_and_ends_with_it(
    server: Application, http: httpx.AsyncClient
) -> None:
    job = (await submitted(http))["id"]
    path = f"/v1/jobs/{job}/events"
    async with listening(server, path) as listener:
        assert listener.status == 200
        assert listener.headers["content-type"].startswith("text/event-stream")
        assert listener.headers["cache-control"] == "no-store"
        assert revs(await listener.events(1)) == [1]
        await signalled(http, job, "a")
        assert revs(await listener.events(1)) == [2]
        await http.post(f"/v1/jobs/{job}/cancel", json={})
        [ended] = await listener.events(1)
        assert (ended["rev"], ended["to_status"], listener.last_id) == (3, "cancelled", "3")
        last = await listener.event()
        assert (last.event, last.data["code"], last.id) == ("end", "ended", None)
        await listener.event()
        assert listener.over
    again = await http.get(
        path, headers={"accept": "text/event-stream", "last-event-id": listener.last_id or ""}
    )
    assert again.status_code == 204
    told = (await http.get(f"/v1/jobs/{job}/history")).json()["events"]
    assert told[-1] == ended


async def test_a_jobs_stream_goes_on_behind_any_event(
    server: Application, http: httpx.AsyncClient
) -> None:
    job = (await submitted(http))["id"]
    await signalled(http, job, "a", "b", "c")
    path = f"/v1/jobs/{job}/events"
    for rev in range(4):
        async with listening(server, path, last=str(rev), after=2) as listener:
            assert revs(await listener.events(4 - rev)) == list(range(rev + 1, 5))
    async with listening(server, path, after=3) as listener:
        assert revs(await listener.events(1)) == [4]


@pytest.mark.parametrize("last", ["x", "-1", "9" * 30, "3.5", "99"])
async def test_a_last_event_id_that_no_event_of_the_job_had_is_refused(
    http: httpx.AsyncClient, last: str
) -> None:
    job = (await submitted(http))["id"]
    headers = {"accept": "text/event-stream", "last-event-id": last}
    reply = await http.get(f"/v1/jobs/{job}/events", headers=headers)
    assert (reply.status_code, reply.json()["code"]) == (422, "bad_data")


async def test_a_last_event_id_that_is_too_long_is_named(http: httpx.AsyncClient) -> None:
    job = (await submitted(http))["id"]
    for path in (f"/v1/jobs/{job}/events", "/v1/events"):
        reply = await http.get(path, headers={"last-event-id": "1" * 401})
        assert (reply.status_code, reply.json()["code"]) == (422, "validation_failed")
        assert reply.json()["field"] == "last-event-id"


async def test_silence_is_filled(server: Application, http: httpx.AsyncClient) -> None:
    live(server).pace = Pace(keep_alive_seconds=0.01)
    job = (await submitted(http))["id"]
    async with listening(server, f"/v1/jobs/{job}/events") as listener:
        await listener.events(1)
        assert (await listener.block()).comment == "queued at revision 1"
    async with listening(server, "/v1/events") as listener:
        await listener.placed()
        assert (await listener.block()).id is not None
        assert (await listener.block()).comment == "no event has come"


async def test_the_feed_tells_what_comes_from_now_on(
    server: Application, http: httpx.AsyncClient
) -> None:
    await submitted(http)
    async with listening(server, "/v1/events") as listener:
        await listener.placed()
        job = await submitted(http, queue="q", job_id="mine-1", tenant="mine", args={"a": "secret"})
        await signalled(http, job["internal_id"], "go")
        created, signal = await listener.events(2)
    assert created["type"] == "job_created"
    assert signal["type"] == "signal_received"
    for event in (created, signal):
        told = (event["job_id"], event["tenant"], event["queue"], event["task"])
        assert told == ("mine-1", "mine", "q", "other")
    assert "secret" not in str(created)


async def test_the_feed_tells_a_tenant_of_its_own_jobs_alone(
    server: Application, call: Call
) -> None:
    async with listening(server, "/v1/events", who="viewer@mine") as listener:
        await listener.placed()
        await submitted(call("submitter@theirs"))
        await submitted(call("submitter@mine"), queue="ours")
        [event] = await listener.events(1)
        assert (event["tenant"], event["queue"]) == ("mine", "ours")
    page = (await call("viewer@mine").get("/v1/events", params={"after": "start"})).json()
    assert [one["tenant"] for one in page["events"]] == ["mine"]
    refused = await call("viewer@mine").get("/v1/events", params={"tenant": "theirs"})
    assert refused.status_code == 422


@pytest.mark.parametrize("look_seconds", [5.0, 0.0], ids=["as it is", "no time to look"])
@pytest.mark.parametrize("by", ["tenant", "queue"])
async def test_pages_of_the_feed_do_not_count_what_others_did(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, by: str, look_seconds: float
) -> None:
    monkeypatch.setattr(feeding, "PAGE_EVENTS", 3)
    monkeypatch.setattr(feeding, "SCAN_SECONDS", look_seconds)
    for whose in ("theirs", "theirs", "theirs", "mine", "mine", "theirs", "theirs", "mine"):
        await submitted(http, **{by: whose})
    told: list[list[str]] = []
    after = "start"

    async def read_on() -> None:
        nonlocal after
        query: dict[str, Any] = {by: "mine", "after": after, "limit": 1}
        page = (await http.get("/v1/events", params=query)).json()
        told.append([event[by] for event in page["events"]])
        after = page["next"]

    for _ in range(8):
        await read_on()
    if look_seconds:
        assert told == [["mine"]] * 3 + [[]] * 5
    else:
        assert told.count(["mine"]) == 3, "it goes on from where it had to leave off"
    for whose in ("theirs", "mine"):
        await submitted(http, **{by: whose})
    await read_on()
    assert told[-1] == ["mine"]


async def test_the_feed_is_narrowed(server: Application, http: httpx.AsyncClient) -> None:
    kinds = ["signal_received"]
    wish: dict[str, Any] = {"queue": "q1", "task": "other", "tenant": "t", "type": kinds}
    async with listening(server, "/v1/events", **wish) as listener:
        await listener.placed()
        jobs = []
        for wanted in ({"queue": "q2"}, {"task": "another"}, {"tenant": "u"}, {}):
            jobs.append(await submitted(http, **({"queue": "q1", "tenant": "t"} | wanted)))
            await signalled(http, jobs[-1]["internal_id"], "go")
        [event] = await listener.events(1)
    assert (event["internal_id"], event["type"]) == (jobs[-1]["internal_id"], "signal_received")


async def heard(server: Application, listener: Listener, count: int) -> list[str]:
    return [event["id"] for event in await listener.events(count)]


async def test_the_feed_goes_on_behind_any_event(
    server: Application, http: httpx.AsyncClient
) -> None:
    await submitted(http)
    async with listening(server, "/v1/events", after="start") as listener:
        await listener.events(1)
    for _ in range(4):
        await submitted(http)
    last, told = listener.last_id, []
    for _ in range(4):
        async with listening(server, "/v1/events", last=last) as listener:
            told += await heard(server, listener, 1)
            last = listener.last_id
    whole = (await http.get("/v1/events", params={"after": "start"})).json()["events"]
    assert told == [event["id"] for event in whole][1:]


async def test_whoever_heard_nothing_yet_misses_nothing(
    server: Application, http: httpx.AsyncClient
) -> None:
    async with listening(server, "/v1/events") as listener:
        connected, place = [await listener.block() for _ in range(2)]
        assert connected.comment == "connected"
        assert place.id is not None
    job = await submitted(http)
    async with listening(server, "/v1/events", last=listener.last_id) as listener:
        [event] = await listener.events(1)
    assert event["internal_id"] == job["internal_id"]


async def test_a_listener_that_comes_and_goes_under_load_has_no_gap(
    server: Application, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So small that whoever is away for a moment is behind the window.
    monkeypatch.setattr(feeding, "WINDOW_EVENTS", 8)
    monkeypatch.setattr(feeding, "PAGE_EVENTS", 5)
    jobs = 120

    async def submit_all() -> None:
        for _ in range(jobs // 4):
            await asyncio.gather(*(submitted(http) for _ in range(4)))

    told: list[str] = []
    async with listening(server, "/v1/events") as listener:
        await listener.placed()
    last = listener.last_id
    submitting = asyncio.create_task(submit_all())
    async with listening(server, "/v1/events") as steady:
        await steady.placed()
        while len(told) < jobs:
            async with listening(server, "/v1/events", last=last) as listener:
                told += await heard(server, listener, min(7, jobs - len(told)))
                last = listener.last_id
    await submitting
    page = (await http.get("/v1/events", params={"after": "start"})).json()["events"]
    assert told == [event["id"] for event in page]


async def test_a_listener_that_falls_behind_the_window_catches_up(
    server: Application, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeding, "WINDOW_EVENTS", 4)
    async with listening(server, "/v1/events") as slow, listening(server, "/v1/events") as quick:
        await slow.placed()
        await quick.placed()
        slow.taking.clear()
        jobs = [(await submitted(http))["internal_id"] for _ in range(30)]
        assert [one["internal_id"] for one in await quick.events(30)] == jobs
        assert live(server).feed._start > feeding.OLDEST
        slow.taking.set()
        assert [one["internal_id"] for one in await slow.events(30)] == jobs


async def test_a_listener_that_takes_nothing_is_dropped_and_may_come_back(
    server: Application, http: httpx.AsyncClient
) -> None:
    live(server).pace = Pace(stall_seconds=0.05)
    async with listening(server, "/v1/events") as listener:
        await listener.placed()
        await submitted(http)
        await listener.events(1)
        listener.taking.clear()
        second = await submitted(http)
        await listener.dropped()
        assert listener.waiting.is_set()
    async with listening(server, "/v1/events", last=listener.last_id) as listener:
        [event] = await listener.events(1)
    assert event["internal_id"] == second["internal_id"]


async def test_a_stream_ends_soon_after_its_token(
    server: Application, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    live(server).pace = Pace(check_seconds=0.01)
    async with listening(server, "/v1/events", who="viewer@mine") as listener:
        await listener.placed()

        async def revoked(authorization: str | None) -> Any:
            raise Unauthorized("the token was revoked")

        monkeypatch.setattr(server.state.authenticator, "caller", revoked)
        last = await listener.event()
        assert (last.event, last.data["code"]) == ("end", "unauthorized")
        await listener.event()
        assert listener.over


async def test_a_server_that_ends_ends_its_streams(
    server: Application, http: httpx.AsyncClient
) -> None:
    job = (await submitted(http))["id"]
    async with (
        listening(server, "/v1/events") as feed,
        listening(server, f"/v1/jobs/{job}/events") as of_job,
    ):
        await feed.placed()
        await of_job.events(1)
        server.state.shutdown.start()
        for listener in (feed, of_job):
            last = await listener.event()
            assert (last.event, last.data["code"], last.id) == ("end", "closing", None)
            await listener.event()
            assert listener.over
    assert live(server).streams == 0


async def test_there_are_so_many_streams_and_no_more(
    server: Application, http: httpx.AsyncClient
) -> None:
    live(server).most_streams = 1
    async with listening(server, "/v1/events") as listener:
        await listener.placed()
        async with asyncio.timeout(20):
            refused = await http.get("/v1/events", headers={"accept": "text/event-stream"})
        assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
        assert refused.headers["retry-after"] == "5"
    async with listening(server, "/v1/events") as listener:
        await listener.placed()


async def test_a_cursor_shows_nothing_and_cannot_be_made_up(
    server: Application, http: httpx.AsyncClient
) -> None:
    places = [(await http.get("/v1/events")).json()["next"] for _ in range(2)]
    assert places[0] != places[1]
    assert len(places[0]) == len(places[1])
    cursors = await live(server).cursors.current()
    assert cursors.decrypt(places[0]) == cursors.decrypt(places[1])
    for bad in ("x", "0", places[0][:-4] + "AAAA", "é" * 3, "A" * 401):
        refused = await http.get("/v1/events", params={"after": bad})
        assert refused.status_code == 422, bad
    from_elsewhere = cursors.encrypt("9" * 18 + "0")
    assert (await http.get("/v1/events", params={"after": from_elsewhere})).status_code == 422
    await server.state.session.store.bump_epoch()
    restored = await http.get("/v1/events", params={"after": places[0]})
    assert restored.status_code == 422
    assert "restored" in restored.json()["detail"]


async def test_the_feed_is_read_page_by_page(http: httpx.AsyncClient) -> None:
    jobs = [(await submitted(http))["internal_id"] for _ in range(5)]
    first = (await http.get("/v1/events", params={"after": "start", "limit": 3})).json()
    rest = (await http.get("/v1/events", params={"after": first["next"]})).json()
    assert [event["internal_id"] for event in first["events"] + rest["events"]] == jobs
    end = (await http.get("/v1/events", params={"after": rest["next"]})).json()
    assert end["events"] == []


@pytest.fixture
async def away(server: Application, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """A database that does not answer when it is asked for the tail."""

    async def fails(*_: Any, **__: Any) -> Any:
        raise ConnectionError("secret")

    monkeypatch.setattr(server.state.session.store, "tail", fails)
    yield
    monkeypatch.undo()


@pytest.mark.usefixtures("away")
async def test_a_feed_without_a_database_says_why_it_waits(server: Application, call: Call) -> None:
    live(server).pace = Pace(keep_alive_seconds=0.01)
    said = {}
    for who in (None, "viewer@mine"):
        async with listening(server, "/v1/events", who=who) as listener:
            await listener.placed()
            while (comment := (await listener.block()).comment) in (None, "no event has come"):
                if who is not None and comment is not None:
                    break
            said[who] = comment
    assert said == {None: "the database does not answer", "viewer@mine": "no event has come"}


class Late:
    """A store whose first look at the tail is answered only when it is told to."""

    def __init__(self, store: Any) -> None:
        """Ask `store`."""
        self._store = store
        self.looked, self.go = asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        """Leave all else to it."""
        return getattr(self._store, name)

    async def tail(self, cursor: str | None, *, limit: int) -> Any:
        """Look at once."""
        tail = await self._store.tail(cursor, limit=limit)
        if not self.looked.is_set():
            self.looked.set()
            await self.go.wait()
        return tail


async def test_a_page_is_not_behind_what_came_while_it_was_read(
    server: Application, http: httpx.AsyncClient
) -> None:
    store = Late(server.state.session.store)
    feed = feeding.Feed(store)  # type: ignore[arg-type]
    reading = asyncio.create_task(feed.page(await store.tail_end()))
    await store.looked.wait()
    job = await submitted(http)
    with feed.listening():
        # Whoever listens now begins behind that event.
        await feed.after(await store.tail_end(), limit_seconds=5)
        store.go.set()
        page = await reading
    assert page.events == []
    following = await feed.page(page.cursor)
    assert [str(one.event.internal_id) for one in following.events] == [job["internal_id"]]


async def test_the_feed_is_of_the_tenant_that_is_asked_for(
    server: Application, http: httpx.AsyncClient
) -> None:
    for tenant in ("mine", "theirs"):
        await submitted(http, tenant=tenant)
    for asked in ({"headers": {"holdfast-tenant": "mine"}}, {"params": {"tenant": "mine"}}):
        query: dict[str, Any] = {"params": {}, **asked}
        query["params"] = {**query["params"], "after": "start"}
        page = (await http.get("/v1/events", **query)).json()
        assert [event["tenant"] for event in page["events"]] == ["mine"]
