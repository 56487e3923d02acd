"""Artifacts by their operations, at hand and through a server: right bytes, or an error."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from holdfast.client.remote import RemoteOperations
from holdfast.client.transport import Transport, make_headers, make_http
from holdfast.errors import (
    ArtifactsDamaged,
    ArtifactsErased,
    BlobsUnavailable,
    FileNotSaved,
    NoSuchArtifact,
    NoSuchJob,
    Refused,
)
from holdfast.http.app import make_server
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import KeptOutput
from holdfast.operations.local import LocalOperations
from holdfast.operations.request import Operations, R, Request
from holdfast.operations.requests import GetArtifact, ListArtifacts
from holdfast.operations.save_artifacts import download_artifacts, save_artifacts
from holdfast.operations.session import StoreSession
from holdfast.operations.views import ArtifactList
from holdfast.ports.blobs import Blobs
from holdfast.ports.store import Store
from holdfast.queries.artifacts import NO_ARTIFACTS, Artifact, manifest_key
from holdfast.testing.factories import JANITOR, owner_of
from holdfast.testing.store_actions import do, running_job
from holdfast.wiring import make_store, migrate, plan_blobs, read_address
from tests.operations.conftest import Trusting
from tests.support.artifacts import end, end_with
from tests.support.spool import running_command

LARGE = os.urandom(700_000)
FILES = {"a": b"one", "d/b": LARGE, "d/e/c": b"", "dd": b"two"}


@pytest.fixture(params=["sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Where the jobs are."""
    name = "postgres_url" if request.param == "postgres" else "sqlite_path"
    address = read_address(str(request.getfixturevalue(name)))
    await migrate(address)
    return make_store(address)


class Acting:
    """Callers of one store, and its place of blobs."""

    def __init__(self, session: StoreSession, transport: httpx.ASGITransport | None) -> None:
        self._session = session
        self._transport = transport
        self.store = session.store
        self.stack = AsyncExitStack()

    async def blobs(self) -> Blobs:
        """The place of blobs that they read from."""
        return await self._session.blobs()

    def for_(self, tenant: str | None) -> Operations:
        """Give the operations of a caller for a tenant, or for all."""
        if self._transport is None:
            return LocalOperations(self._session, name="ann", tenant=tenant)
        http = make_http("http://test", make_headers(f"ann@{tenant or ''}", None), self._transport)
        self.stack.push_async_callback(http.aclose)
        return RemoteOperations(Transport(http, patience_seconds=0.5))


@pytest.fixture(params=["at hand, in a directory", "through a server, in a bucket"])
async def acting(request: pytest.FixtureRequest, store: Store) -> AsyncIterator[Acting]:
    """Callers at hand or through a server, with either kind of place for blobs."""
    is_at_hand = request.param.startswith("at hand")
    address = request.getfixturevalue("local_address" if is_at_hand else "s3_address")
    place = plan_blobs(str(address))
    async with AsyncExitStack() as stack:
        if is_at_hand:
            session = StoreSession(store, open_blobs=place)
            await session.open()
            stack.push_async_callback(session.close)
            made = Acting(session, None)
        else:
            server = make_server(store, Trusting(), open_blobs=place)
            await stack.enter_async_context(server.lifespan_context(server))
            made = Acting(server.state.session, httpx.ASGITransport(server))
        await stack.enter_async_context(made.stack)
        yield made


async def content(operations: Operations, request: GetArtifact, *part: int) -> bytes:
    """Read an artifact, or a part of it."""
    opened = await operations.do(request)
    return b"".join([piece async for piece in opened.read(*part)])


@pytest.mark.req("D13")
@pytest.mark.parametrize("exit_code", [0, 3])
async def test_artifacts_are_kept_whatever_the_outcome(
    acting: Acting, tmp_path: Path, exit_code: int
) -> None:
    blobs, everybody = await acting.blobs(), acting.for_(None)
    job = await end_with(acting.store, blobs, tmp_path, FILES, exit_code=exit_code)
    listed = await everybody.do(ListArtifacts(job=job.id))
    assert {one.path: one.bytes for one in listed.artifacts} == {
        path: len(data) for path, data in FILES.items()
    }
    for path, data in FILES.items():
        assert await content(everybody, GetArtifact(job=job.id, name=path)) == data
    wanted = GetArtifact(job=job.id, name="d/b")
    assert await content(everybody, wanted, 300_000, 600_001) == LARGE[300_000:600_001]
    assert await content(everybody, wanted, 699_999) == LARGE[-1:]
    assert await content(everybody, wanted, 700_000) == b""
    assert await content(everybody, wanted, 5, 5) == b""
    assert await content(everybody, wanted, 0, 10**9) == LARGE
    with pytest.raises(NoSuchArtifact, match="'nothing'"):
        await content(everybody, GetArtifact(job=job.id, name="nothing"))


async def test_who_may_read_them_and_when(acting: Acting, tmp_path: Path) -> None:
    store, blobs = acting.store, await acting.blobs()
    mine, theirs = acting.for_("mine"), acting.for_("theirs")
    running = await running_command(store, tenant="mine")
    with pytest.raises(Refused, match="collected at the end"):
        await mine.do(ListArtifacts(job=running.id))
    function = await running_job(store, tenant="mine")
    ended = await do(store, function, c.Complete(actor=owner_of(function)))
    assert (await mine.do(ListArtifacts(job=ended.id))).artifacts == []
    job = await end_with(store, blobs, tmp_path, {"a": b"1"}, tenant="mine")
    with pytest.raises(NoSuchJob):
        await theirs.do(ListArtifacts(job=job.id))
    with pytest.raises(NoSuchJob):
        await content(theirs, GetArtifact(job=job.id, name="a"))
    assert await content(mine, GetArtifact(job=job.id, name="a")) == b"1"
    cleaning = await do(store, job, c.Clean(actor=JANITOR))
    with pytest.raises(ArtifactsErased):
        await mine.do(ListArtifacts(job=cleaning.id))
    with pytest.raises(ArtifactsErased):
        await content(mine, GetArtifact(job=cleaning.id, name="a"))


@pytest.mark.req("B29")
async def test_a_list_or_a_file_that_is_not_the_one_collected_is_an_error(
    acting: Acting, tmp_path: Path
) -> None:
    blobs, everybody = await acting.blobs(), acting.for_(None)
    job = await end_with(acting.store, blobs, tmp_path, FILES)
    key = f"artifacts/{job.id}/1/1"
    await blobs.put(key, LARGE[:-1] + bytes([LARGE[-1] ^ 1]))
    with pytest.raises(ArtifactsDamaged):
        await content(everybody, GetArtifact(job=job.id, name="d/b"))
    # A part has no digest; what is left of the file is as long as it was.
    assert await content(everybody, GetArtifact(job=job.id, name="d/b"), 0, 5) == LARGE[:5]
    await blobs.put(key, LARGE[:-1])
    with pytest.raises(ArtifactsDamaged):
        await content(everybody, GetArtifact(job=job.id, name="d/b"), 0, 5)
    await blobs.put(manifest_key(job.id, 1), b'{"files":[]}')
    with pytest.raises(ArtifactsDamaged, match="list"):
        await everybody.do(ListArtifacts(job=job.id))


async def test_without_a_place_of_blobs_only_what_needs_one_is_refused(
    store: Store, tmp_path: Path
) -> None:
    session = StoreSession(store)
    await session.open()
    operations = LocalOperations(session, name="ann", tenant=None)
    nothing = await end(store, await running_command(store), NO_ARTIFACTS)
    assert (await operations.do(ListArtifacts(job=nothing.id))).artifacts == []
    kept = KeptOutput(digest="ab" * 32, bytes=1)
    something = await end(store, await running_command(store), kept)
    with pytest.raises(BlobsUnavailable):
        await operations.do(ListArtifacts(job=something.id))
    await session.close()


@pytest.mark.req("D13")
async def test_artifacts_are_saved_below_a_directory(acting: Acting, tmp_path: Path) -> None:
    everybody = acting.for_(None)
    job = await end_with(acting.store, await acting.blobs(), tmp_path, FILES)
    to = tmp_path / "to" / "here"
    written = await download_artifacts(everybody, job.id, to)
    assert {str(path.relative_to(to)): path.read_bytes() for path in written} == FILES
    assert not [path for path in to.rglob("*") if ".part" in path.name]
    for paths, expected in (
        (["d"], {"d/b", "d/e/c"}),
        (["d/", "a"], {"a", "d/b", "d/e/c"}),
        (["d/e/c"], {"d/e/c"}),
    ):
        other = tmp_path / paths[0].replace("/", "-")
        found = await download_artifacts(everybody, job.id, other, paths)
        assert {str(path.relative_to(other)) for path in found} == expected
    with pytest.raises(NoSuchArtifact, match="'x'"):
        await download_artifacts(everybody, job.id, to, ["a", "x"])


class Lying:
    """A server that lists what it likes, and sends `data` for each file."""

    def __init__(self, listed: list[Artifact], data: bytes) -> None:
        self._listed = listed
        self._data = data
        self.reads = 0

    async def do(self, request: Request[R]) -> R:
        """Answer."""
        if isinstance(request, GetArtifact):
            self.reads += 1
            return self  # type: ignore[return-value]
        return ArtifactList(  # type: ignore[return-value]
            job_id="x",
            internal_id="x",  # type: ignore[arg-type]
            artifacts=self._listed,
            total_bytes=0,
            truncated=False,
            skipped=[],
            skipped_counts={},
        )

    async def read(self) -> AsyncIterator[bytes]:
        """Send something."""
        yield self._data


def texts_in(directory: Path) -> dict[str, str]:
    """Return what is in a directory."""
    return {one.name: one.read_text() for one in directory.iterdir()}


def listed(path: str, data: bytes = b"data") -> Artifact:
    """A file that a server claims to have."""
    return Artifact(path=path, bytes=len(data), sha256=sha256(data).hexdigest())


@pytest.mark.parametrize(
    "path",
    [
        "../x",
        "/x",
        "a/../../x",
        "a//x",
        "",
        ".",
        "a/",
        "a\x00b",
        "a\nb",
        "./x",
        "x\ud800",
        "a\\b",
        "a\u202eb",
        "n" * 256,
    ],
)
async def test_no_file_is_written_under_a_name_that_leads_elsewhere(
    tmp_path: Path, path: str
) -> None:
    server = Lying([listed("good"), listed(path)], b"data")
    to = tmp_path / "to"
    with pytest.raises(FileNotSaved, match="unsafe name"):
        await download_artifacts(server, "x", to)
    assert server.reads == 0
    assert texts_in(to) == {}


async def test_no_link_is_followed_when_files_are_saved(tmp_path: Path) -> None:
    to, outside = tmp_path / "to", tmp_path / "outside"
    to.mkdir()
    outside.mkdir()
    (outside / "file").write_text("mine")
    (to / "dir").symlink_to(outside)
    (to / "link").symlink_to(outside / "file")
    (to / "dangling").symlink_to(outside / "new")
    for path in ("dir/new", "link", "dangling"):
        with pytest.raises(FileNotSaved):
            await download_artifacts(Lying([listed(path)], b"data"), "x", to)
    with pytest.raises(FileNotSaved):
        await download_artifacts(Lying([listed("dir/new")], b"data"), "x", to, overwrite=True)
    # What replaces a link is a file of its own.
    await download_artifacts(Lying([listed("link")], b"data"), "x", to, overwrite=True)
    assert (to / "link").read_bytes() == b"data"
    assert not (to / "link").is_symlink()
    assert texts_in(outside) == {"file": "mine"}


async def test_files_that_exist_are_kept_unless_they_may_be_overwritten(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("mine")
    server = Lying([listed("a"), listed("b")], b"data")
    with pytest.raises(FileNotSaved, match="exists"):
        await download_artifacts(server, "x", tmp_path)
    assert server.reads == 0
    assert texts_in(tmp_path) == {"b": "mine"}
    await download_artifacts(server, "x", tmp_path, overwrite=True)
    assert (tmp_path / "b").read_bytes() == b"data"


async def test_a_file_that_appears_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    def appear(_: int) -> None:
        (tmp_path / "a").write_text("mine")

    file = listed("a")
    with pytest.raises(FileNotSaved, match="exists"):
        await save_artifacts(Lying([], b"data"), "x", [file], tmp_path, on_bytes=appear)
    assert texts_in(tmp_path) == {"a": "mine"}


@pytest.mark.parametrize("data", [b"dato", b"dat", b"data and more"])
async def test_other_bytes_than_listed_are_not_saved(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ArtifactsDamaged):
        await download_artifacts(Lying([listed("a")], data), "x", tmp_path)
    assert texts_in(tmp_path) == {}


async def test_a_file_that_does_not_end_is_given_up(tmp_path: Path) -> None:
    server = Lying([listed("a")], b"dat")
    pieces = 0

    async def read() -> AsyncIterator[bytes]:
        nonlocal pieces
        while pieces < 100:
            pieces += 1
            yield b"dat"

    server.read = read  # type: ignore[method-assign]
    with pytest.raises(ArtifactsDamaged):
        await download_artifacts(server, "x", tmp_path)
    assert pieces == 2
    assert texts_in(tmp_path) == {}


async def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileNotSaved, match="file"):
        await download_artifacts(Lying([listed("a")], b"data"), "x", tmp_path / "file" / "below")
