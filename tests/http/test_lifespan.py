"""A server whose database answers only later, or is not as it must be."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest

from holdfast.errors import HoldfastError, NoTokens, SchemaMismatch, StoreUnavailable
from holdfast.http import lifespan
from holdfast.http.app import make_server
from holdfast.http.listener import HttpServer
from holdfast.ports.store import Store
from holdfast.stores.sqlite.store import SqliteStore
from tests.http.conftest import Names


class Slow(SqliteStore):
    """A store that takes until it is told to."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.may_open = asyncio.Event()

    async def open(self) -> None:
        """Wait, then open."""
        await self.may_open.wait()
        await super().open()


class Late(SqliteStore):
    """A store that cannot be opened the first few times."""

    def __init__(self, path: Path, *trouble: HoldfastError) -> None:
        super().__init__(path)
        self.trouble = list(trouble)
        self.may_open = asyncio.Event()
        self.tries = 0

    async def open(self) -> None:
        """Fail while there is trouble left; the last of it only goes when it is told to."""
        self.tries += 1
        if self.trouble:
            if len(self.trouble) == 1:
                await self.may_open.wait()
            raise self.trouble.pop(0)
        await super().open()


@pytest.fixture(autouse=True)
def _brief(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifespan, "PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(lifespan, "FIRST_PAUSE_SECONDS", 0.001)


async def test_a_database_that_comes_later_is_opened_with_all_that_runs_beside(
    tmp_path: Path,
) -> None:
    begun = asyncio.Event()

    async def beside(store: Store) -> None:
        await store.clock()
        begun.set()

    away = StoreUnavailable("away")
    store = Late(tmp_path / "jobs.db", away, SchemaMismatch("old"), away)
    app = make_server(store, Names(), beside=[beside])
    transport = httpx.ASGITransport(app)
    async with (
        app.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://test") as http,
    ):
        assert (await http.get("/healthz")).status_code == 200
        for path in ("/readyz", "/v1/jobs"):
            assert (await http.get(path)).json()["code"] == "store_unavailable"
        assert not begun.is_set()
        store.may_open.set()
        async with asyncio.timeout(20):
            await begun.wait()
        assert (await http.get("/readyz")).status_code == 200
        assert store.tries == 4


async def test_a_schema_that_does_not_fit_is_told_at_the_start(tmp_path: Path) -> None:
    store = Late(tmp_path / "jobs.db", SchemaMismatch("old"))
    store.may_open.set()
    app = make_server(store, Names())
    with pytest.raises(SchemaMismatch):
        async with app.lifespan_context(app):
            pass


@pytest.mark.parametrize("away", [False, True], ids=["slow", "away"])
async def test_a_refusal_that_comes_after_the_beginning_ends_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, away: bool
) -> None:
    async def check(store: Store) -> None:
        await store.clock()
        raise NoTokens("nobody has one")

    path = tmp_path / "jobs.db"
    store = Late(path, StoreUnavailable("away")) if away else Slow(path)
    app = make_server(store, Names(), check=check)
    gateway = HttpServer(app, port=0)

    def begun() -> None:
        assert not store.may_open.is_set()
        store.may_open.set()

    with pytest.raises(NoTokens):
        async with asyncio.timeout(20):
            await gateway.run(begun)
    errors = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert errors == ["the server cannot continue and stops: nobody has one"]


async def test_a_server_that_is_refused_late_is_not_ready(tmp_path: Path) -> None:
    async def check(store: Store) -> None:
        raise NoTokens("nobody has one")

    store = Slow(tmp_path / "jobs.db")
    app = make_server(store, Names(), check=check)
    life, http = app.lifespan_context(app), httpx.ASGITransport(app)
    await life.__aenter__()
    store.may_open.set()
    async with asyncio.timeout(20), httpx.AsyncClient(transport=http) as client:
        await app.state.shutdown.wait()
        assert (await client.get("http://test/readyz")).json()["code"] == "server_ending"
    with pytest.raises(NoTokens):
        await life.__aexit__(None, None, None)


async def test_a_server_that_ends_before_its_database_came_ends(tmp_path: Path) -> None:
    app = make_server(Late(tmp_path / "jobs.db", StoreUnavailable("away")), Names())
    async with asyncio.timeout(20):
        async with app.lifespan_context(app):
            pass
