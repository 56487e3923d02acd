"""Policy watch: apply a file of rules, and apply it again when it has changed.

A file that is broken or missing leaves the policy that is applied as it is. That is logged once per
change, counted, and noted in the store, so that `holdfast doctor` reports it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path

import msgspec
from msgspec import Struct

from holdfast.admission.book import Book, read_book
from holdfast.errors import BadPolicy
from holdfast.lifecycle.record import Actor
from holdfast.ports.store import Store
from holdfast.services.loop import Loop
from holdfast.telemetry import Meters

log = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
SETTLE_SECONDS = 0.2
"""How long a file must stay unchanged before it is read: it may still be being written."""
FILE_LIMIT = 4_000_000
"""Bytes of a file that are read: more than any policy may have."""
TROUBLE_NOTE = "policy-file"
"""The note of the store under which `PolicyTrouble` is, as JSON; empty while no file is broken."""


class PolicyTrouble(Struct, frozen=True, kw_only=True):
    """A file of rules that could not be applied."""

    path: str
    host: str
    since: int
    """By the store's clock."""
    message: str


class _Content(Struct, frozen=True):
    """A file as it was at one moment."""

    digest: bytes
    data: bytes
    problem: str | None = None
    """Why it cannot be read."""


def _read(path: Path) -> _Content:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_LIMIT + 1)
    except OSError as error:
        return _Content(b"", b"", f"{path} cannot be read: {error.strerror}")
    problem = f"{path} has more than {FILE_LIMIT:,} bytes" if len(data) > FILE_LIMIT else None
    return _Content(sha256(data).digest(), data, problem)


def _text_of(content: _Content, path: Path) -> str:
    if content.problem is not None:
        raise BadPolicy(content.problem)
    try:
        return content.data.decode()
    except UnicodeDecodeError as error:
        raise BadPolicy(f"{path} is not UTF-8: {error}") from error


def _compile(content: _Content, path: Path) -> Book:
    return read_book(_text_of(content, path), str(path))


def read_text_file(path: Path) -> str:
    """Read a file; BadPolicy if that cannot be done."""
    return _text_of(_read(path), path)


def read_policy_file(path: Path) -> Book:
    """Read a file of rules; BadPolicy names the file, the line and what to write."""
    return _compile(_read(path), path)


def read_policy_trouble(note: str | None) -> PolicyTrouble | None:
    """Return what is noted of a broken file; None if there is none."""
    return msgspec.json.decode(note, type=PolicyTrouble) if note else None


class PolicyWatch(Loop):
    """The loop that applies one file; any number of processes may watch the same."""

    def __init__(
        self,
        store: Store,
        path: Path,
        actor: Actor,
        *,
        look_seconds: float = LOOK_SECONDS,
        settle_seconds: float = SETTLE_SECONDS,
        meters: Meters | None = None,
    ) -> None:
        super().__init__("policy watch", self.look, meters=meters)
        self._store = store
        self._path = path
        self._actor = actor
        self._look_seconds = look_seconds
        self._settle_seconds = settle_seconds
        self._seen: bytes | None = None
        """The digest of the file as it was at the last look; empty if it could not be read."""
        self._done: bytes | None = None
        """The digest that was last applied, or found broken."""

    async def apply_now(self) -> None:
        """Apply the file as it is; BadPolicy if it is broken, and then nothing is changed."""
        content = await asyncio.to_thread(_read, self._path)
        await self._apply(_compile(content, self._path))
        self._seen = self._done = content.digest

    async def look(self) -> float:
        """Look whether the file has changed; apply it once it has stayed the same for a moment."""
        content = await asyncio.to_thread(_read, self._path)
        if content.digest != self._seen:
            self._seen = content.digest
            return self._settle_seconds
        if content.digest != self._done:
            try:
                await self._apply(await asyncio.to_thread(_compile, content, self._path))
            except BadPolicy as error:
                await self._fail(error)
            # Only now: while the store is away, this is tried again.
            self._done = content.digest
        return self._look_seconds

    async def _apply(self, book: Book) -> None:
        before = await self._store.policy()
        if before is None or before.digest != book.digest:
            await self._store.apply_policy(
                book.text, actor=self._actor.label, reason=f"file {self._path}"
            )
            log.info("policy %s of %s is applied", book.digest[:12], self._path)
        await self._note(None)
        self._meters.policy_stale = 0

    async def _fail(self, error: BadPolicy) -> None:
        await self._note(str(error))
        # Only now: while the store is away, this is tried again, and is to be logged once.
        log.error("the policy stays as it is: %s", error)
        self._meters.policy_stale = 1
        self._meters.policy_failures += 1

    async def _note(self, message: str | None) -> None:
        """Note that the file is broken, or that it no longer is; another file's note stays."""
        before = await self._store.note(TROUBLE_NOTE)
        known = read_policy_trouble(before)
        host, path = socket.gethostname(), str(self._path)
        mine = known is not None and (known.host, known.path) == (host, path)
        after = ""
        if message is None and not mine:
            return
        if message is not None:
            now = (await self._store.clock()).now
            since = known.since if known is not None and mine else now
            trouble = PolicyTrouble(path=path, host=host, since=since, message=message)
            after = msgspec.json.encode(trouble).decode()
        if after != (before or ""):
            await self._store.move_note(TROUBLE_NOTE, before=before, to=after)


@asynccontextmanager
async def watch_policy(
    store: Store, path: Path, actor: Actor, *, meters: Meters | None = None
) -> AsyncIterator[None]:
    """Apply a file, and watch it while the block runs; BadPolicy if it is broken now."""
    watch = PolicyWatch(store, path, actor, meters=meters)
    await watch.apply_now()
    watching = asyncio.create_task(watch.run())
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
