"""The one place that puts parts together: from an address to a store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import lru_cache
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit, urlunsplit

from msgspec import Struct

from holdfast.config import shown
from holdfast.errors import BadAddress
from holdfast.ports import Store
from holdfast.stores.findings import Finding
from holdfast.stores.postgres.schema import DEFAULT_SCHEMA, check_schema_name

Progress = Callable[[int, str], None]


class Address(Struct, frozen=True, kw_only=True):
    """Where a store is: a SQLite file, or a PostgreSQL url and how to use it."""

    engine: str
    place: str
    """A path, `:memory:`, or the url without Holdfast's own parameters."""
    schema: str = DEFAULT_SCHEMA
    """Of PostgreSQL: where the tables are."""
    pooled: bool = False
    listen_url: str | None = None


@lru_cache(maxsize=64)
def read_address(text: str) -> Address:
    """Read what a user writes: `jobs.db`, `sqlite:///var/jobs.db`, `postgresql://…`.

    Three parameters of a PostgreSQL url are Holdfast's own: `schema` for where its tables are,
    `pooled=true` for PgBouncer in transaction mode, and `listen_url` for a direct address to be
    woken up through.
    """
    scheme = _parts(text).scheme
    if scheme in ("postgres", "postgresql"):
        return _postgres_address(text)
    if scheme == "sqlite":
        return Address(engine="sqlite", place=_sqlite_path(text))
    if "://" in text:
        raise BadAddress(
            f"{text!r} is no store: give a path, sqlite:///path or postgresql://user@host/database"
        )
    return Address(engine="sqlite", place=text)


def _parts(text: str) -> SplitResult:
    try:
        return urlsplit(text)
    except ValueError as error:
        raise BadAddress(f"{text!r} is no store: {error}") from error


def _check_ports(text: str, parts: SplitResult) -> None:
    # Not `parts.port`: PostgreSQL lets an address name several hosts.
    for host in parts.netloc.rpartition("@")[2].split(","):
        port = host.rpartition("]")[2].partition(":")[2]
        if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 2**16):
            raise BadAddress(f"invalid store URL {shown('url', text)!r}: bad port {port!r}")


def _sqlite_path(text: str) -> str:
    rest = text.removeprefix("sqlite://")
    if rest in ("", ":memory:", "/:memory:"):
        return ":memory:"
    # sqlite:///relative and sqlite:////absolute, as the field writes them.
    return rest.removeprefix("/")


def _postgres_address(text: str) -> Address:
    parts = _parts(text)
    _check_ports(text, parts)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    if given.get("target_session_attrs") in ("standby", "read-only", "prefer-standby"):
        raise BadAddress(
            f"invalid store URL {shown('url', text)!r}: the store is written to; "
            "target_session_attrs must be primary or read-write"
        )
    pooled = given.pop("pooled", "false").lower() in ("1", "true", "yes", "on")
    listen_url = given.pop("listen_url", None)
    schema = check_schema_name(given.pop("schema", DEFAULT_SCHEMA))
    place = urlunsplit(parts._replace(query=urlencode(given)))
    return Address(
        engine="postgres", place=place, schema=schema, pooled=pooled, listen_url=listen_url
    )


def make_store(address: Address, *, deadline_seconds: float = 30.0) -> Store:
    """Make the store of an address; nothing is opened yet.

    `deadline_seconds` is how long each request waits for a database that does not answer.
    """
    # Imported here, so that the embedded store needs no PostgreSQL driver.
    if address.engine == "sqlite":
        from holdfast.stores.sqlite.store import SqliteStore

        return SqliteStore(address.place, deadline_seconds=deadline_seconds)
    try:
        from holdfast.stores.postgres.store import PostgresStore
    except ModuleNotFoundError as error:
        raise BadAddress("PostgreSQL needs a driver: pip install 'holdfast[postgres]'") from error
    return PostgresStore(
        address.place,
        schema=address.schema,
        pooled=address.pooled,
        listen_url=address.listen_url,
        deadline_seconds=deadline_seconds,
    )


@asynccontextmanager
async def opened(address: Address, *, deadline_seconds: float = 30.0) -> AsyncIterator[Store]:
    """Open a store for as long as the block runs."""
    store = make_store(address, deadline_seconds=deadline_seconds)
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def migrate(
    address: Address, *, progress: Progress | None = None, beside_others: bool = False
) -> list[int]:
    """Bring a store's schema up to date; returns the migrations that were applied.

    `beside_others` lets a new schema be made where somebody else's tables are.
    """
    if address.engine == "sqlite":
        from holdfast.stores.sqlite.migrate import migrate as sqlite_migrate

        return sqlite_migrate(address.place, progress=progress, beside_others=beside_others)
    from holdfast.stores.postgres.migrate import migrate as postgres_migrate

    return await postgres_migrate(
        address.listen_url or address.place,
        schema=address.schema,
        progress=progress,
        beside_others=beside_others,
    )


async def examine(address: Address) -> list[Finding]:
    """Look at a store from outside: whether it is there, as it must be, and has room."""
    if address.engine == "sqlite":
        from holdfast.stores.sqlite.examining import examine as examine_sqlite

        return await asyncio.to_thread(examine_sqlite, address.place)
    from holdfast.stores.postgres.examining import examine as examine_postgres

    return await examine_postgres(address.place, address.listen_url, schema=address.schema)
