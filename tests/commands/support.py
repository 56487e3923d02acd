"""What tests of commands use: a store, boxes, workers on them, jobs and their ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.app.app import Holdfast
from holdfast.errors import NoSuchBlob
from holdfast.flow.submit import NamedTask
from holdfast.flow.submit_command import COMMAND_TERMS
from holdfast.lifecycle.command_spec import KINDS, CommandSpec, needed_capabilities
from holdfast.lifecycle.dialects import DIALECTS
from holdfast.lifecycle.payload import encode_body
from holdfast.lifecycle.record import Job, LoggedEvent
from holdfast.lifecycle.times import SECOND
from holdfast.ports.blobs import Blobs, read_blob
from holdfast.ports.models import Submitted
from holdfast.queries.blob_keys import artifacts_prefix, logs_prefix
from holdfast.queries.box_files import attempt_directory, find_root
from holdfast.runners.command.options import Commands
from holdfast.tasks.handles import JobHandle
from holdfast.wiring import plan_blobs
from holdfast.worker.worker import Worker
from tests.lifecycle.seed_rules import legal_in_seed
from tests.runners.hosts import CGROUPS, leftovers
from tests.support.podman import IMAGE, PrivatePodman

LIMIT_SECONDS = 90.0
"""After this long a test has failed; nothing here takes so long."""
HOST = "host-under-test"
RUNS = "echo ran >> ${HOLDFAST_ARTIFACTS:-/artifacts}/runs; "
"""Counts a start of the command."""


class CommandPlace(Struct, kw_only=True):
    """A store, a directory for commands, and what runs them there."""

    url: str
    directory: Path
    commands: Commands
    app: Holdfast
    podman: PrivatePodman | None = None
    """What has the containers, if they are such."""

    @asynccontextmanager
    async def worker(self, tick: str = "100ms", **more: Any) -> AsyncIterator[Worker]:
        """Run a worker in this process; `more` are other settings of its commands."""
        async with self.app.worker(
            commands=replace(self.commands, **more), grace="5s", tick=tick, poll="50ms"
        ) as worker:
            yield worker

    async def submit(
        self,
        command: str,
        *,
        image: str | None = None,
        timeout_seconds: float | None = None,
        cpus: int = 1,
        memory_mb: int = 64,
        **fields: Any,
    ) -> JobHandle[Any]:
        """Submit a shell command with finer terms than a user may ask for."""
        spec = CommandSpec(type="worker", command=command, image=image)
        return await self._submit(spec, timeout_seconds, cpus, memory_mb, fields)

    async def submit_agent(
        self,
        task: str = "do it",
        *,
        profile: str = "scripted",
        timeout_seconds: float | None = None,
        env: dict[str, str] | None = None,
        **more: Any,
    ) -> JobHandle[Any]:
        """Submit an agent; `more` are other fields of its spec."""
        spec = CommandSpec(type="agent", task=task, git_branch="main", profile=profile, **more)
        fields = {"needs": needed_capabilities(None, profile), "queue": "agents", "env": env or {}}
        return await self._submit(spec, timeout_seconds, 1, 64, fields)

    async def _submit(
        self,
        spec: CommandSpec,
        timeout_seconds: float | None,
        cpus: int,
        memory_mb: int,
        fields: dict[str, Any],
    ) -> JobHandle[Any]:
        timeout = None if timeout_seconds is None else int(timeout_seconds * SECOND)
        given = {
            "queue": "commands",
            "kind": KINDS[spec.type],
            "needs": needed_capabilities(None),
            "cpus": cpus,
            "memory_mb": memory_mb,
            "policy": replace(COMMAND_TERMS, timeout=timeout),
            **fields,
        }
        task = NamedTask(spec.type, elsewhere=False)
        new = self.app.builder.decide(task, encode_body(msgspec.to_builtins(spec)), given)
        [made] = await (await self.app.store()).submit([new])
        assert isinstance(made, Submitted), made
        return await self.app.get(str(made.job.id))

    async def read(self, job: JobHandle[Any]) -> Job:
        """Read the job's record."""
        return (await self.app.get(job.id)).record

    async def until(
        self, job: JobHandle[Any], holds: Callable[[Job], object], what: str = "a state"
    ) -> Job:
        """Wait until the job's record is as it must be."""
        async with asyncio.timeout(LIMIT_SECONDS):
            while not holds(record := await self.read(job)):  # noqa: ASYNC110  another process's
                await asyncio.sleep(0.02)
        assert record is not None, what
        return record

    async def ended(self, job: JobHandle[Any]) -> Job:
        """Wait until the job has ended."""
        return await self.until(job, lambda record: record.terminal, "its end")

    async def running(self, job: JobHandle[Any], line: str = "ready") -> Job:
        """Wait until the job's command has printed a line."""
        record = await self.until(job, lambda record: record.running or record.terminal)
        async with asyncio.timeout(LIMIT_SECONDS):
            while line not in await self.output(job):  # noqa: ASYNC110  a file
                await asyncio.sleep(0.02)
        return record

    async def files(self, job: JobHandle[Any]) -> Path:
        """Return the directory of the job's attempt."""
        record = await self.read(job)
        root = await find_root(await self.app.store(), self.directory)
        return attempt_directory(root, record.id, record.attempt)

    async def output(self, job: JobHandle[Any]) -> list[str]:
        """Return the lines that the job's command printed, of both streams."""
        try:
            text = (await self.files(job) / "log").read_bytes()
        except FileNotFoundError:
            text = await self._kept_log(job)
        lines = text.decode().splitlines()
        return [line.split(" ", 3)[3] for line in lines if line.count(" ") >= 3]

    async def _kept_log(self, job: JobHandle[Any]) -> bytes:
        """Return what is kept of the job's log: once it has ended, one blob has all of it."""
        record, blobs = await self.read(job), await self.blobs()
        prefix = logs_prefix(record.id, record.attempt)
        entries = [entry async for entry in blobs.list(prefix)]
        longest = max(entries, key=lambda entry: entry.bytes, default=None)
        return b"" if longest is None else await read_blob(blobs, longest.key)

    async def artifact(self, job: JobHandle[Any], name: str) -> bytes | None:
        """Return a file that the job left in /artifacts, from its host or as it was kept."""
        with suppress(FileNotFoundError):
            return (await self.files(job) / "artifacts" / name).read_bytes()
        record, blobs = await self.read(job), await self.blobs()
        with suppress(NoSuchBlob):
            key = f"{artifacts_prefix(record.id, record.attempt)}/manifest"
            files = msgspec.json.decode(await read_blob(blobs, key))["files"]
            for one in files:
                if one["path"] == name:
                    return await read_blob(blobs, one["key"])
        return None

    async def blobs(self) -> Blobs:
        """Return where the worker keeps logs and artifacts."""
        return await plan_blobs(None, self.directory)(await self.app.store())

    async def passed(self, micros: int | None) -> None:
        """Wait until a time has passed, by the store's clock."""
        assert micros is not None
        store = await self.app.store()
        async with asyncio.timeout(LIMIT_SECONDS):
            while (await store.clock()).now <= micros:  # noqa: ASYNC110  the store's clock
                await asyncio.sleep(0.05)

    async def dead(self, job: JobHandle[Any]) -> None:
        """Wait until no process of a job's box is left, by its control groups."""
        async with asyncio.timeout(LIMIT_SECONDS):
            while processes_of(job):  # noqa: ASYNC110  the host's
                await asyncio.sleep(0.02)

    async def cleared(self) -> None:
        """Wait until no box is left on the host."""
        async with asyncio.timeout(LIMIT_SECONDS):
            while await asyncio.to_thread(self._has_boxes):  # noqa: ASYNC110  another process's
                await asyncio.sleep(0.05)

    def _has_boxes(self) -> bool:
        groups = [group for store in self.directory.iterdir() for group in leftovers(store.name)]
        if any("/hf-" in group for group in groups):
            return True
        return self.podman is not None and "containers" in self.podman.left()

    async def error(self, job: JobHandle[Any]) -> str:
        """Return what the event that ended a job states as its error."""
        return next((one.body or b"").decode() for one in await self.events(job) if one.ends)

    async def events(self, job: JobHandle[Any]) -> list[LoggedEvent]:
        """Return the events of a job."""
        return list(await (await self.app.store()).events(job.record.id))

    def start_worker(self, die_at: str | None = None, **more: Any) -> subprocess.Popen[bytes]:
        """Start a worker in a process of its own, which may kill itself at a named point."""
        settings = msgspec.json.encode(replace(self.commands, **more)).decode()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        if die_at is not None:
            environment["HOLDFAST_DIE_AT"] = die_at
        return subprocess.Popen(
            [sys.executable, "-m", "tests.commands.worker_program", self.url, settings],
            env=environment,
            cwd=Path(__file__).parents[2],
        )


def processes_of(job: JobHandle[Any]) -> set[int]:
    """Return the processes of a job's boxes, by their control groups."""
    found: set[int] = set()
    mark = f"/hf-{job.record.id}-"
    for hierarchy in CGROUPS.iterdir():
        # Groups of others come and go meanwhile.
        for group, _, _ in os.walk(hierarchy / "holdfast"):
            with suppress(OSError):
                if mark in group:
                    found |= set(map(int, Path(group, "cgroup.procs").read_text().split()))
    return found


async def list_illegal_histories(app: Holdfast) -> list[str]:
    """Return what is illegal in the lives of all jobs, as the dialect of commands shows them."""
    store = await app.store()
    lives = [await store.events(job.record.id) async for job in app.jobs()]
    return [fault for life in lives for fault in legal_in_seed("D", DIALECTS["D"].history(life))]


async def runs(place: CommandPlace, job: JobHandle[Any]) -> int:
    """Return how often a command that begins with `RUNS` was started."""
    return len((await place.artifact(job, "runs") or b"").splitlines())


async def killed(process: subprocess.Popen[bytes], by: signal.Signals = signal.SIGKILL) -> int:
    """Send a signal to a worker's process, and wait for its end."""
    process.send_signal(by)
    return await gone(process)


async def gone(process: subprocess.Popen[bytes]) -> int:
    """Wait until a worker's process has ended; return its code."""
    return await asyncio.wait_for(asyncio.to_thread(process.wait), LIMIT_SECONDS)


def commands_of(runner: str, directory: Path, podman: PrivatePodman | None) -> Commands:
    """Return the settings of a worker that runs commands with one runner."""
    storage = () if podman is None else podman.settings.storage
    return Commands(
        runner=runner,
        image=IMAGE,
        cpus=4,
        memory_gb=2,
        directory=str(directory),
        host=HOST,
        storage=storage,
        grace_seconds=1.0,
        pause_seconds=0.5,
    )
