"""Tokens at the door: every route refuses whoever may not, on both stores, and loses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest
from starlette.datastructures import Headers

from holdfast.auth.authorization import OF_ALL_TENANTS, SCOPES, Scope, TokenRole
from holdfast.auth.tokens import MadeToken, TokenRegistry, WantedToken
from holdfast.errors import Forbidden, NoTokens, StoreUnavailable, Unauthorized
from holdfast.http.app import make_server
from holdfast.http.authentication import (
    LocalAuthenticator,
    TokenAuthenticator,
    check_exposure,
    is_loopback,
    make_authenticator,
)
from holdfast.http.limits import ServerLimits
from holdfast.http.router import Application
from holdfast.lifecycle.record import JobId
from holdfast.ports.models import Token
from holdfast.ports.store import Store
from holdfast.stores.postgres.migrate import migrate
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.factories import announcement
from holdfast.wiring import make_store, read_address
from tests.http.test_middleware import ask, routes
from tests.http.test_slow_clients import Still
from tests.support.postgres import PostgresCluster

ROOT = "control:root"
ROUTES = routes()


@pytest.fixture(scope="session")
def postgres_template(postgres_cluster: PostgresCluster) -> str:
    """A migrated, empty database."""
    return postgres_cluster.make_template("doors", lambda url: asyncio.run(migrate(url)))


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, sqlite_path: Path) -> str:
    """Where a store of either engine is."""
    if request.param == "sqlite":
        return str(sqlite_path)
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
async def guarded(place: str) -> AsyncIterator[Application]:
    """A server that takes tokens, and asks about each at every request."""
    store = make_store(read_address(place))
    app = make_server(store, TokenAuthenticator(store, fresh_seconds=0))
    async with app.lifespan_context(app):
        yield app


@pytest.fixture
async def memory() -> AsyncIterator[SqliteStore]:
    """A store that is open."""
    store = SqliteStore(":memory:")
    await store.open()
    yield store
    await store.close()


async def made(store: Store, role: str = "admin", **wishes: Any) -> MadeToken:
    """Make a token."""
    wanted = WantedToken(**{"name": "ann", "role": TokenRole(role), **wishes})
    return await TokenRegistry(store, actor=ROOT).create(wanted)


def store_of(app: Application) -> Store:
    """The store behind a server."""
    store: Store = app.state.session.store
    return store


def client(app: Application, token: str | None, scheme: str = "Bearer") -> httpx.AsyncClient:
    """Somebody who shows a token."""
    headers = {} if token is None else {"authorization": f"{scheme} {token}"}
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://test", headers=headers
    )


def is_refused(reply: httpx.Response, status: int, code: str) -> bool:
    """Compare a problem; the answer to a HEAD has no body, and so no code."""
    if reply.request.method == "HEAD":
        return reply.status_code == status and reply.content == b""
    return reply.status_code == status and reply.json()["code"] == code


def bearing(token: str) -> Headers:
    """What a request shows."""
    return Headers({"authorization": f"Bearer {token}"})


class Prey:
    """A job and a token of tenant `mine` that nobody else may come near."""

    def __init__(self, app: Application) -> None:
        self.app = app
        self.job = self.token = ""

    async def submitted(self) -> Prey:
        """Make both."""
        store = store_of(self.app)
        async with client(self.app, (await made(store)).token) as http:
            wanted = {"task": "t", "tenant": "mine", "queue": "q"}
            reply = await http.post("/v1/jobs", json=wanted)
            self.job = reply.json()["job"]["internal_id"]
            self.token = (await made(store, "viewer", tenant="mine", queues=["q"])).about.id
        return self

    async def all_asked(
        self, http: httpx.AsyncClient, scopes: Sequence[Scope] = tuple(Scope)
    ) -> dict[tuple[str, str, Scope], httpx.Response]:
        """Ask everything that demands one of these scopes."""
        return {
            (method, path, scope): await ask(http, method, path, self.job, self.token)
            for method, path, scope in ROUTES
            if scope in scopes
        }

    @property
    def id(self) -> JobId:
        """The job's internal id."""
        return JobId(UUID(self.job))


@pytest.fixture
async def prey(guarded: Application) -> Prey:
    """What all of this is about."""
    return await Prey(guarded).submitted()


async def bad_tokens(store: Store) -> dict[str, str | None]:
    """Tokens that do not count, each in its own way."""
    known = await made(store)
    revoked = await made(store)
    await store.revoke_token(revoked.about.id, actor=ROOT)
    other = "z" * 52 if known.token[-1] != "z" else "y" * 52
    return {
        "none": None,
        "empty": "",
        "no token": "root",
        "unknown": f"hf_{'0' * 20}_{known.token[-52:]}",
        "another secret": f"hf_{known.about.id}_{other}",
        "a longer secret": f"{known.token}a",
        "in capitals": known.token.upper(),
        "with a NUL": known.token.replace("hf_", "hf_\x01"),
        "expired": (await made(store, expires=0.000001)).token,
        "revoked": revoked.token,
    }


async def test_every_route_refuses_a_token_that_does_not_count(prey: Prey) -> None:
    for kind, token in (await bad_tokens(store_of(prey.app))).items():
        async with client(prey.app, token) as http:
            for route, reply in (await prey.all_asked(http)).items():
                assert is_refused(reply, 401, "unauthorized"), (kind, route)
                assert reply.headers["www-authenticate"] == "Bearer"
    async with client(prey.app, (await made(store_of(prey.app))).token, "Basic") as http:
        assert (await http.get("/v1/jobs")).status_code == 401
    assert [one.rev for one in (await store_of(prey.app).tail(None)).events] == [1]


@pytest.mark.req("A12")
async def test_every_route_refuses_a_role_that_does_not_cover_it(prey: Prey) -> None:
    for role in TokenRole:
        lacking = [scope for scope in Scope if scope not in SCOPES[role]]
        token = await made(store_of(prey.app), role.value)
        async with client(prey.app, token.token) as http:
            for route, reply in (await prey.all_asked(http, lacking)).items():
                assert is_refused(reply, 403, "forbidden"), (role, route)
        await store_of(prey.app).revoke_token(token.about.id, actor=ROOT)
    assert [one.rev for one in (await store_of(prey.app).tail(None)).events] == [1]


async def test_no_route_lets_another_tenants_token_near(prey: Prey) -> None:
    token = await made(store_of(prey.app), "admin", tenant="theirs", name="thief")
    async with client(prey.app, token.token) as http:
        for route, reply in (await prey.all_asked(http)).items():
            _, path, scope = route
            if "{job}" in path or "{token}" in path:
                assert reply.status_code == 404, (route, reply.text)
            elif scope in OF_ALL_TENANTS:
                assert reply.status_code == 403, (route, reply.text)
            else:
                assert reply.status_code not in (401, 403, 500), (route, reply.text)
            assert prey.job not in reply.text.replace(f"no job {prey.job}", "").replace(
                f'"job_id":"{prey.job}"', ""
            ), route
            assert "mine" not in reply.text, route
    store = store_of(prey.app)
    assert len(await store.events(prey.id)) == 1
    # What it made is its own tenant's.
    assert {one.tenant for one in await store.tokens() if "thief" in one.created_by} <= {"theirs"}


async def test_no_route_lets_a_token_of_another_queue_near(prey: Prey) -> None:
    token = await made(store_of(prey.app), "admin", queues=["other"])
    async with client(prey.app, token.token) as http:
        for route, reply in (await prey.all_asked(http)).items():
            _, path, scope = route
            if "{job}" in path:
                assert reply.status_code == 404, (route, reply.text)
            elif path.startswith("/v1/uploads"):
                # An upload is of a tenant: who submits to one queue may send files for it.
                assert reply.status_code not in (401, 403, 500), (route, reply.text)
            elif "{queue}" in path or "{token}" in path or scope is Scope.SUBMIT:
                assert reply.status_code == 403, (route, reply.text)
            else:
                assert reply.status_code not in (401, 500), (route, reply.text)
                assert prey.job not in reply.text, route
        wrong = await http.post("/v1/worker/sessions", json={"queues": ["q"]})
        assert wrong.status_code == 403
        for path in ("/v1/jobs", "/v1/dead-letters", "/v1/events"):
            assert (await http.get(path, params={"queue": "q"})).status_code == 403, path
        moved = await http.post("/v1/jobs", json={"task": "t", "queue": "other"})
        assert moved.status_code == 201
    store = store_of(prey.app)
    assert len(await store.events(prey.id)) == 1
    assert not [one for one in await store.queues() if one.paused_at is not None]


async def test_a_token_of_several_queues_says_which_it_lists(prey: Prey) -> None:
    async with client(prey.app, (await made(store_of(prey.app))).token) as http:
        await http.post("/v1/jobs", json={"task": "t", "queue": "third"})
    token = await made(store_of(prey.app), "viewer", queues=["q", "other"])
    async with client(prey.app, token.token) as http:
        unsaid = await http.get("/v1/jobs")
        assert (unsaid.status_code, unsaid.json()["detail"]) == (422, "name a queue: other, q")
        listed = (await http.get("/v1/jobs", params={"queue": "q"})).json()["jobs"]
        assert [one["internal_id"] for one in listed] == [prey.job]
        depths = (await http.get("/v1/queues")).json()["queues"]
        assert [one["queue"] for one in depths] == ["q"]


async def test_the_right_token_does_everything(prey: Prey) -> None:
    token = await made(store_of(prey.app))
    async with client(prey.app, token.token) as http:
        for route, reply in (await prey.all_asked(http)).items():
            assert reply.status_code not in (401, 403, 500), (route, reply.text)


async def test_what_a_token_does_bears_its_name(guarded: Application) -> None:
    token = await made(store_of(guarded), "operator", name="deploy")
    actor = f"control:deploy/{token.about.id}"
    async with client(guarded, token.token) as http:
        job = (await http.post("/v1/jobs", json={"task": "t"})).json()["job_id"]
        await http.post(f"/v1/jobs/{job}/cancel", json={"reason": "enough"})
        events = (await http.get(f"/v1/jobs/{job}/history")).json()["events"]
        assert [one["actor"] for one in events] == [f"gateway:deploy/{token.about.id}", actor]
        paused = await http.post("/v1/queues/q/pause", json={})
        assert paused.json()["paused_by"] == actor
    [entry] = await store_of(guarded).queue_events()
    assert entry.actor == actor


async def test_an_admin_hands_on_no_more_than_it_has(guarded: Application) -> None:
    store = store_of(guarded)
    bound = await made(store, "admin", tenant="mine", queues=["a", "b"])
    wider = await made(store, "viewer", tenant="theirs")
    async with client(guarded, bound.token) as http:
        own = await http.post("/v1/tokens", json={"name": "n", "role": "worker", "queues": ["a"]})
        assert own.status_code == 201
        about = own.json()["about"]
        assert (about["tenant"], about["queues"]) == ("mine", ["a"])
        assert about["created_by"] == f"control:ann/{bound.about.id}"
        same = (await http.post("/v1/tokens", json={"name": "n", "role": "admin"})).json()["about"]
        assert (same["tenant"], same["queues"]) == ("mine", ["a", "b"])
        for more in ({"tenant": "theirs"}, {"queues": ["a", "c"]}):
            reply = await http.post("/v1/tokens", json={"name": "n", "role": "viewer", **more})
            assert reply.status_code == 403, more
        listed = (await http.get("/v1/tokens")).json()["tokens"]
        assert [one["tenant"] for one in listed] == ["mine"] * 3
        for id_ in (wider.about.id, "0" * 20, "x", "%00"):
            assert (await http.delete(f"/v1/tokens/{id_}")).status_code == 404, id_
    assert len(await store.tokens()) == 4


@pytest.mark.parametrize(
    "unfit",
    [
        {"name": ""},
        {"name": "a\0b"},
        {"role": "root"},
        {"queues": []},
        {"queues": [""]},
        {"expires": "soon"},
        {"expires": 0},
        {"expires_at": "2020-01-01T00:00:00Z"},
        {"expires_at": "2099-01-01T00:00:00"},
        {"expires": "1h", "expires_at": "2099-01-01T00:00:00Z"},
        {"secret": "mine"},
    ],
    ids=str,
)
async def test_an_unfit_token_is_refused_and_not_made(
    http: httpx.AsyncClient, unfit: dict[str, Any]
) -> None:
    reply = await http.post("/v1/tokens", json={"name": "n", "role": "viewer"} | unfit)
    assert reply.status_code == 422, reply.text
    assert reply.json().get("field") == f"$.{[*unfit][-1]}"
    assert (await http.get("/v1/tokens")).json()["tokens"] == []


async def test_tokens_are_listed_page_by_page(http: httpx.AsyncClient) -> None:
    for number in range(3):
        body = {"name": str(number), "role": "viewer", "expires": "30d"}
        reply = await http.post("/v1/tokens", json=body)
        assert reply.headers["cache-control"] == "no-store"
    first = (await http.get("/v1/tokens", params={"limit": 2})).json()
    rest = (await http.get("/v1/tokens", params={"limit": 2, "before": first["next"]})).json()
    assert [one["name"] for one in first["tokens"] + rest["tokens"]] == ["2", "1", "0"]
    assert rest["next"] is None
    assert "digest" not in first["tokens"][0]


async def test_of_a_secret_nothing_but_its_digest_is_kept(sqlite_path: Path) -> None:
    store = SqliteStore(sqlite_path)
    await store.open()
    token = (await made(store)).token
    await store.close()
    kept = b"".join(one.read_bytes() for one in sqlite_path.parent.glob(f"{sqlite_path.name}*"))
    assert token.split("_")[1].encode() in kept
    assert token.split("_")[2].encode() not in kept


async def test_too_many_requests_are_told_when_to_come_again(memory: SqliteStore) -> None:
    limits = ServerLimits(requests_per_second=0.01, burst=2)
    app = make_server(memory, TokenAuthenticator(memory), limits=limits)
    async with app.lifespan_context(app):
        busy, calm = await made(memory, "viewer"), await made(memory, "viewer")
        async with client(app, busy.token) as http:
            replies = [await http.get("/v1/jobs") for _ in range(3)]
        assert [one.status_code for one in replies] == [200, 200, 429]
        assert replies[-1].json()["code"] == "rate_limited"
        assert 90 <= int(replies[-1].headers["retry-after"]) <= 100
        async with client(app, calm.token) as http:
            assert (await http.get("/v1/jobs")).status_code == 200


async def test_a_revocation_bites_when_the_store_is_asked_again(memory: SqliteStore) -> None:
    clock = Still()
    door = TokenAuthenticator(memory, fresh_seconds=2, monotonic=clock)
    token = await made(memory)
    assert (await door.caller(bearing(token.token))).token == token.about.id
    await memory.revoke_token(token.about.id, actor=ROOT)
    clock.now += 2
    with pytest.raises(Unauthorized, match="revoked"):
        await door.caller(bearing(token.token))


async def test_a_token_expires_though_the_store_is_not_asked(memory: SqliteStore) -> None:
    clock = Still()
    door = TokenAuthenticator(memory, fresh_seconds=1e9, monotonic=clock)
    token = await made(memory, expires="1h")
    await door.caller(bearing(token.token))
    clock.now += 3600
    with pytest.raises(Unauthorized, match="expired"):
        await door.caller(bearing(token.token))


async def test_a_role_of_a_newer_version_does_not_count(memory: SqliteStore) -> None:
    token = await made(memory)
    await memory._session.perform(
        lambda turn: turn.connection.execute("UPDATE tokens SET role = 'overlord'") and None
    )
    with pytest.raises(Unauthorized, match="overlord"):
        await TokenAuthenticator(memory).caller(bearing(token.token))


class Asked:
    """A store that counts how often it is asked for tokens, and waits until it is let go on."""

    def __init__(self, inner: SqliteStore) -> None:
        self._inner = inner
        self.asked: list[int] = []
        self.begun, self.go_on = asyncio.Event(), asyncio.Event()
        self.broken = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def look_up_tokens(self, ids: Sequence[str]) -> list[Token | None]:
        self.asked.append(len(ids))
        self.begun.set()
        await self.go_on.wait()
        if self.broken:
            raise StoreUnavailable("away")
        return await self._inner.look_up_tokens(ids)


async def test_made_up_tokens_cost_the_store_one_question_at_a_time(memory: SqliteStore) -> None:
    store = Asked(memory)
    door = TokenAuthenticator(store)
    good = await made(memory)
    shown = [f"hf_{number:020x}_{'a' * 52}" for number in range(50)] + [good.token]
    asking = [asyncio.create_task(door.caller(bearing(one))) for one in shown]
    await store.begun.wait()
    late = asyncio.create_task(door.caller(bearing(good.token)))
    store.go_on.set()
    *bad, known = await asyncio.gather(*asking, return_exceptions=True)
    assert all(isinstance(one, Unauthorized) for one in bad)
    assert known == await late
    assert store.asked in ([1, 50], [51], [51, 1])
    assert len(door._known) == 1


async def test_a_store_that_is_away_lets_nobody_in_and_is_asked_again(memory: SqliteStore) -> None:
    store = Asked(memory)
    store.broken = True
    store.go_on.set()
    door = TokenAuthenticator(store)
    token = await made(memory)
    with pytest.raises(StoreUnavailable):
        await door.caller(bearing(token.token))
    store.broken = False
    assert (await door.caller(bearing(token.token))).token == token.about.id


LOCALLY = Headers({"host": "127.0.0.1:8080"})


async def test_on_this_machine_it_works_without_tokens_until_there_is_one(
    memory: SqliteStore,
) -> None:
    door = LocalAuthenticator(memory, TokenAuthenticator(memory), fresh_seconds=0)
    caller = await door.caller(LOCALLY)
    assert (caller.name, caller.role, caller.tenant) == ("local", TokenRole.ADMIN, None)
    token = await made(memory, "viewer")
    with pytest.raises(Unauthorized):
        await door.caller(LOCALLY)
    assert (await door.caller(bearing(token.token))).role is TokenRole.VIEWER
    await memory.revoke_token(token.about.id, actor=ROOT)
    again = LocalAuthenticator(memory, TokenAuthenticator(memory))
    with pytest.raises(Unauthorized):
        await again.caller(LOCALLY)


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "127.0.0.1.evil.example:8080"},
        {"host": ""},
        {"host": "localhost", "origin": "https://evil.example"},
        {"host": "localhost", "origin": "null"},
        {"host": "localhost", "origin": ""},
        {"host": "192.168.0.7:8080"},
        {"host": "[broken"},
        {},
        {"host": "evil.example@127.0.0.1"},
        {"host": "evil.example#@127.0.0.1"},
        {"host": "127.0.0.1:8080", "origin": "http://127.0.0.1:3000"},
        {"host": "127.0.0.1:8080", "origin": "http://localhost:8080"},
        {"host": "127.0.0.1:8080", "origin": "https://127.0.0.1:8080"},
        {"host": "127.0.0.1", "origin": "null"},
        {"host": "127.0.0.1", "sec-fetch-site": "cross-site"},
        {"host": "127.0.0.1", "sec-fetch-site": "same-site"},
        {"host": "127.0.0.1", "origin": "http://127.0.0.1", "sec-fetch-site": "Same-Site"},
    ],
    ids=str,
)
async def test_a_page_from_elsewhere_cannot_use_the_open_door(
    memory: SqliteStore, headers: dict[str, str]
) -> None:
    with pytest.raises(Forbidden):
        await LocalAuthenticator(memory, TokenAuthenticator(memory)).caller(Headers(headers))


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "localhost:8080"},
        {"host": "[::1]:8080"},
        {"host": "127.0.0.1", "origin": "http://127.0.0.1"},
        {"host": "localhost:8080", "origin": "http://localhost:8080"},
        {"host": "localhost:8080", "sec-fetch-site": "same-origin"},
        {"host": "localhost:8080", "sec-fetch-site": "none"},
    ],
    ids=str,
)
async def test_a_program_on_this_machine_uses_the_open_door(
    memory: SqliteStore, headers: dict[str, str]
) -> None:
    assert await LocalAuthenticator(memory, TokenAuthenticator(memory)).caller(Headers(headers))


@pytest.mark.parametrize(
    "header", ["forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip"]
)
async def test_a_proxy_on_this_machine_does_not_open_the_door_to_the_network(
    memory: SqliteStore, header: str
) -> None:
    forwarded = Headers({"host": "127.0.0.1:8080", header: "203.0.113.9"})
    with pytest.raises(Forbidden, match="holdfast token create"):
        await LocalAuthenticator(memory, TokenAuthenticator(memory)).caller(forwarded)


async def test_a_second_host_does_not_hide_behind_the_first(memory: SqliteStore) -> None:
    twice = Headers(raw=[(b"host", b"127.0.0.1"), (b"host", b"evil.example")])
    with pytest.raises(Forbidden):
        await LocalAuthenticator(memory, TokenAuthenticator(memory)).caller(twice)


LOOPBACK = {
    "127.0.0.1": True,
    "127.8.9.1": True,
    "::1": True,
    "[::1]": True,
    "localhost": True,
    "0.0.0.0": False,
    "::": False,
    "": False,
    "192.168.0.7": False,
    "8.8.8.8": False,
    "host.example": False,
    "localhost.evil.example": False,
}


@pytest.mark.parametrize(("host", "local"), LOOPBACK.items())
async def test_beyond_this_machine_a_server_takes_tokens_or_does_not_begin(
    memory: SqliteStore, host: str, local: bool
) -> None:
    assert is_loopback(host) is local
    assert isinstance(
        make_authenticator(memory, host), LocalAuthenticator if local else TokenAuthenticator
    )
    if local:
        await check_exposure(memory, host)
        return
    with pytest.raises(NoTokens, match="holdfast token create"):
        await check_exposure(memory, host)
    await made(memory)
    await check_exposure(memory, host)


async def test_why_counts_no_other_tenants_jobs(
    http: httpx.AsyncClient, server: Application
) -> None:
    await store_of(server).announce(announcement(queues=("q",), tasks=("t",)))
    for tenant in ("mine", "theirs", "theirs"):
        wanted = {"task": "t", "queue": "q", "tenant": tenant, "job_id": "1"}
        await http.post("/v1/jobs", json=wanted)
    async with client(server, "viewer@mine") as mine:
        told = (await mine.get("/v1/jobs/1/why")).json()
    assert (told["why"]["reason"]["others"], told["why"]["reason"]["of_tenant"]) == (0, True)
    assert "0 jobs of its tenant that could go first" in told["text"]


async def test_a_lineage_ends_where_another_tenant_begins(
    http: httpx.AsyncClient, server: Application
) -> None:
    top = (await http.post("/v1/jobs", json={"task": "t", "tenant": "theirs"})).json()["job_id"]
    middle = {"task": "t", "tenant": "mine", "parent": top}
    job = (await http.post("/v1/jobs", json=middle)).json()["job_id"]
    below = {"task": "t", "tenant": "theirs", "parent": job}
    assert (await http.post("/v1/jobs", json=below)).status_code == 201
    whole = (await http.get(f"/v1/jobs/{job}/lineage")).json()
    assert (len(whole["above"]), len(whole["tree"]["below"])) == (1, 1)
    async with client(server, "viewer@mine") as mine:
        told = (await mine.get(f"/v1/jobs/{job}/lineage")).json()
    assert (told["above"], told["tree"]["below"], told["tree"]["left_out"]) == ([], [], False)
