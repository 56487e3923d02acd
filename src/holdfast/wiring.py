"""The one place that puts parts together: from an address to a store, from tasks to runners."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit, urlunsplit

from msgspec import Struct
from msgspec.structs import replace

from holdfast.admission.topics import Topics
from holdfast.blobs.place import BlobPlace, BucketPlace, DirectoryPlace, read_place
from holdfast.buses.rules import BusRules, JetStreamMode
from holdfast.config import mask_secrets
from holdfast.errors import BadAddress, BadConfig, BlobsUnavailable
from holdfast.flow.blobs_on_demand import BlobsPlan
from holdfast.lifecycle.states import Kind
from holdfast.maintenance.host_health import RunnerCheck
from holdfast.ports.blobs import Blobs, OpenBlobs
from holdfast.ports.box import Boxes
from holdfast.ports.host import Room
from holdfast.ports.store import Store
from holdfast.queries.box_files import choose_directory, default_directory, store_identity
from holdfast.runners.command.box_of import BoxPlace
from holdfast.runners.command.host import CommandHostPlan, measure_room
from holdfast.runners.command.host_lock import find_host_name
from holdfast.runners.command.options import AUTO, ISOLATED_RUNNERS, PODMAN, RUNNERS, Commands
from holdfast.runners.function import FunctionRunner
from holdfast.runners.process.runner import ProcessRunner
from holdfast.stores.findings import Finding, FindingSeverity
from holdfast.stores.postgres.schema import DEFAULT_SCHEMA, check_schema_name
from holdfast.tasks.tasks import Task
from holdfast.telemetry import Meters
from holdfast.worker.runner_table import Runners

if TYPE_CHECKING:
    from holdfast.blobs.objects import ObjectBlobs
    from holdfast.runners.bare.boxes import BareBoxes
    from holdfast.runners.container.settings import PodmanSettings
    from holdfast.runners.sandbox.boxes import SandboxBoxes
    from holdfast.services.bus_bridge.bridge import BusBridge

log = logging.getLogger(__name__)


class BridgePlan(Struct, frozen=True, kw_only=True):
    """Which bus a bridge serves, where it is, and how."""

    url: str
    name: str
    topics: Topics
    tenant: str = "default"
    jetstream: JetStreamMode = JetStreamMode.AUTO
    rules: BusRules = BusRules()


Progress = Callable[[int, str], None]


class Address(Struct, frozen=True, kw_only=True):
    """Where a store is: a SQLite file, or a PostgreSQL url and how to use it."""

    engine: str
    place: str
    """A path, `:memory:`, or the url without Holdfast's own parameters."""
    schema: str = DEFAULT_SCHEMA
    """The schema of PostgreSQL that has the tables."""
    pooled: bool = False
    listen_url: str | None = None


@lru_cache(maxsize=64)
def read_address(text: str) -> Address:
    """Read what a user writes: `jobs.db`, `sqlite:///var/jobs.db`, `postgresql://…`.

    Three parameters of a PostgreSQL url are Holdfast's own: `schema` for where its tables are,
    `pooled=true` for PgBouncer in transaction mode, and `listen_url` for a direct address to be
    woken up through.
    """
    scheme = _split_address(text).scheme
    if scheme in ("postgres", "postgresql"):
        return _postgres_address(text)
    if scheme == "sqlite":
        return Address(engine="sqlite", place=_sqlite_path(text))
    if "://" in text:
        forms = "a path, sqlite:///path or postgresql://user@host/database"
        raise BadAddress(f"invalid store URL {text!r}: use {forms}")
    return Address(engine="sqlite", place=text)


def _split_address(text: str) -> SplitResult:
    try:
        return urlsplit(text)
    except ValueError as error:
        raise BadAddress(f"invalid store URL {text!r}: {error}") from error


def _check_ports(text: str, parts: SplitResult) -> None:
    # Not `parts.port`: PostgreSQL lets an address name several hosts.
    for host in parts.netloc.rpartition("@")[2].split(","):
        port = host.rpartition("]")[2].partition(":")[2]
        if port and not (port.isascii() and port.isdigit() and 0 < int(port) < 2**16):
            raise BadAddress(f"invalid store URL {mask_secrets('url', text)!r}: bad port {port!r}")


def _sqlite_path(text: str) -> str:
    rest = text.removeprefix("sqlite://")
    if rest in ("", ":memory:", "/:memory:"):
        return ":memory:"
    # sqlite:///relative and sqlite:////absolute, as the field writes them.
    return rest.removeprefix("/")


def _postgres_address(text: str) -> Address:
    parts = _split_address(text)
    _check_ports(text, parts)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    if given.get("target_session_attrs") in ("standby", "read-only", "prefer-standby"):
        raise BadAddress(
            f"invalid store URL {mask_secrets('url', text)!r}: the store is written to; "
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
    """Bring a store's schema up to date; return the migrations that were applied.

    `beside_others` creates a new schema even beside tables of others.
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
        from holdfast.stores.sqlite.health import examine as examine_sqlite

        return await asyncio.to_thread(examine_sqlite, address.place)
    from holdfast.stores.postgres.health import examine as examine_postgres

    return await examine_postgres(address.place, address.listen_url, schema=address.schema)


def list_runner_checks() -> dict[str, RunnerCheck]:
    """Return what examines each runner of commands that this version has, by its name."""
    place = BoxPlace(host=find_host_name(), store="doctor", root=default_directory())
    return {name: partial(_examine_runner, name, Commands(), place) for name in RUNNERS}


def make_runners(
    tasks: Mapping[str, Task[Any, Any]], app: Callable[[], str], *, concurrency: int
) -> Runners:
    """Make what runs the tasks of an app, this many at a time.

    `app` names it as `module:attribute`, for the processes of isolated handlers to find it.
    """
    return {
        Kind.FUNCTION: (
            FunctionRunner(tasks, threads=concurrency),
            ProcessRunner(tasks, app, processes=concurrency),
        )
    }


def make_bridge(store: Store, plan: BridgePlan, *, meters: Meters) -> BusBridge:
    """Make the bridge between a store, which is open, and a bus."""
    # Imported here, so that nothing else needs the libraries of a bus.
    try:
        from holdfast.buses.cap import KEPT_SUBJECTS
        from holdfast.buses.nats import NatsBus
        from holdfast.buses.trust import read_trust
        from holdfast.services.bus_bridge.bridge import BusBridge
        from holdfast.services.bus_bridge.settings import BridgeSettings
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("holdfast"):
            raise
        raise BadConfig(f"a bus needs {error.name}: pip install 'holdfast[nats]'") from error
    rules = plan.rules
    sender = rules.sender_id or f"holdfast-{plan.name}"
    settings = BridgeSettings(
        name=plan.name,
        topics=plan.topics,
        tenant=plan.tenant,
        capabilities=frozenset(rules.capabilities),
        cancel_grace_seconds=rules.cancel_grace_seconds,
    )
    bus = NatsBus(plan.url, plan.name, jetstream=plan.jetstream, kept=KEPT_SUBJECTS)
    trust = read_trust(sender, rules.senders, rules.private_key)
    return BusBridge(store, bus, settings, trust, meters=meters)


def plan_blobs(
    place: str | None, directory: Path | None = None, *, for_worker: bool = False
) -> OpenBlobs:
    """Plan where the blobs of a store are; by default below the directory of commands.

    A worker makes it the place of a store that has none yet when it starts, others when they write.
    """
    return partial(_open_blobs, find_place(place, directory), for_worker=for_worker)


def find_place(place: str | None, directory: Path | None = None) -> BlobPlace:
    """Read the address of a place of blobs; by default below the directory of commands."""
    if place is None:
        return DirectoryPlace(choose_directory(directory) / "blobs")
    return read_place(place)


def plan_upkeep_blobs(place: str | None, directory: Path | None = None) -> BlobsPlan:
    """Plan the same for loops that keep a store in order, which do not make the place."""
    found = find_place(place, directory)
    return BlobsPlan(
        open=plan_blobs(place, directory),
        is_there=lambda: isinstance(found, BucketPlace) or found.directory.is_dir(),
    )


async def _open_blobs(place: BlobPlace, store: Store, *, for_worker: bool) -> Blobs:
    # Imported here, so that functions alone do not load the library.
    from holdfast.blobs.bound import BoundBlobs

    blobs = await open_place(place, await store_identity(store))
    bound = BoundBlobs(blobs, store, place.address)
    try:
        await (bound.bind() if for_worker else bound.check())
    except BlobsUnavailable as error:
        if not for_worker:
            raise
        # It may answer later, and boxes that run are cared for meanwhile. A put binds it then.
        log.warning("the place of blobs does not answer yet: %s", error)
    return bound


async def open_place(place: BlobPlace, prefix: str) -> ObjectBlobs:
    """Open a place of blobs, whichever store it belongs to; only what is below a prefix."""
    if isinstance(place, BucketPlace):
        from holdfast.blobs.objects import open_bucket

        return open_bucket(place, prefix)
    from holdfast.blobs.local import open_local

    return await asyncio.to_thread(open_local, place.directory, prefix)


def plan_host(commands: Commands, directory: Path | None, open_blobs: OpenBlobs) -> CommandHostPlan:
    """Plan how commands are run on this host; `directory` is where their files are by default."""
    whole = measure_room()
    room = Room(
        cpus=commands.cpus or whole.cpus,
        memory_mb=whole.memory_mb if commands.memory_gb is None else commands.memory_gb * 1024,
    )
    return CommandHostPlan(
        name=commands.host or find_host_name(),
        directory=choose_directory(commands.directory or directory),
        make_boxes=lambda place: make_boxes(commands, place),
        open_blobs=open_blobs,
        room=room,
        queues=tuple(commands.queues),
        artifacts=commands.artifacts,
        agents=commands.agents,
        secrets=commands.secrets,
        grace_seconds=commands.grace_seconds,
        patience_seconds=commands.patience_seconds,
        pause_seconds=commands.pause_seconds,
    )


async def make_boxes(commands: Commands, place: BoxPlace) -> list[Boxes]:
    """Make what runs boxes, the default first."""
    names = commands.runners
    if names == (AUTO,):
        names = await _choose_runners(commands, place)
    return [await asyncio.to_thread(_make_boxes, name, commands, place) for name in names]


async def _choose_runners(commands: Commands, place: BoxPlace) -> tuple[str, ...]:
    """Return what isolates commands here, the best first; never `process`, which does not.

    Without an image of the host's own, podman is only for commands that name one.
    """
    troubles: list[str] = []
    usable: list[str] = []
    for name in ISOLATED_RUNNERS:
        findings = await _examine_runner(name, commands, place)
        wrong = [one.text for one in findings if one.verdict is FindingSeverity.PROBLEM]
        troubles += [f"{name}: {text}" for text in wrong]
        if not wrong:
            usable.append(name)
    if not usable:
        raise BadConfig(
            f"commands cannot be isolated on this host ({'; '.join(troubles)}); install podman or "
            "bubblewrap, or ask for no isolation by name: --commands process"
        )
    ordered = usable if commands.image is not None else usable[::-1]
    # Podman that is slow or broken now may have boxes here from before, and may work again.
    more = [PODMAN] if PODMAN not in ordered and _may_have_podman() else []
    return (*ordered, *more)


def _may_have_podman() -> bool:
    return os.geteuid() == 0 and shutil.which(PODMAN) is not None


async def _examine_runner(name: str, commands: Commands, place: BoxPlace) -> Sequence[Finding]:
    """Examine whether a runner works on this host."""
    if name == "podman":
        from holdfast.runners.container.examine import examine as examine_podman

        # In a directory of its own: an examination leaves nothing behind.
        with TemporaryDirectory(prefix="holdfast-examine-") as directory:
            settings = replace(_podman_settings(commands, place), directory=Path(directory))
            return await examine_podman(settings)
    return await asyncio.to_thread(lambda: _make_local_boxes(name, commands, place).examine())


def _make_boxes(name: str, commands: Commands, place: BoxPlace) -> Boxes:
    # Imported here, so that a worker of functions alone does not load them.
    if name == "podman":
        from holdfast.runners.container.podman import Podman

        return Podman(_podman_settings(commands, place))
    return _make_local_boxes(name, commands, place)


def _make_local_boxes(name: str, commands: Commands, place: BoxPlace) -> SandboxBoxes | BareBoxes:
    if name == "sandbox":
        from holdfast.runners.sandbox.boxes import SandboxBoxes

        return SandboxBoxes.on_this_host(place.store)
    from holdfast.runners.bare.boxes import BareBoxes

    return BareBoxes.on_this_host(place.store)


def _podman_settings(commands: Commands, place: BoxPlace) -> PodmanSettings:
    from holdfast.runners.container.settings import PodmanSettings

    return PodmanSettings(
        directory=place.root / "podman",
        host=place.host,
        store=place.store,
        image=commands.image,
        pull=commands.pull,
        storage=tuple(commands.storage),
    )
