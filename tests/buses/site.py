"""A bus with everything that takes part: its server, bridges, clients and workers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import nats
from cap import run_worker, submit_job
from cap.pb.cordum.agent.v1 import buspacket_pb2, job_pb2
from msgspec.structs import replace
from nats.aio.client import Client

from holdfast.admission.topics import read_topics
from holdfast.buses.cap import KEPT_SUBJECTS
from holdfast.buses.nats import NatsBus
from holdfast.buses.rules import JetStreamMode
from holdfast.buses.trust import Trust
from holdfast.flow.recover import sweep
from holdfast.lifecycle.record import Actor, Job, LoggedEvent
from holdfast.lifecycle.states import KeyKind, Role
from holdfast.lifecycle.times import SECOND
from holdfast.ports.store import Store
from holdfast.services.bus_bridge.bridge import BusBridge
from holdfast.services.bus_bridge.settings import BridgeSettings
from tests.support.nats import NatsServer

Handler = Callable[[Any], Awaitable[Any]]
LIMIT_SECONDS = 60.0
ROUTES: dict[str, dict[str, Any]] = {
    "job.once": {"bus": "main"},
    "job.again": {"bus": "main", "idempotent": True, "retries": 3},
    "job.any.*": {"bus": "main"},
    "job.few": {"bus": "main", "max_in_flight": 3},
}


def settings_of(routes: Mapping[str, Any] = ROUTES, **more: Any) -> BridgeSettings:
    """Settings of a bus for tests: it looks often, and waits briefly."""
    settings = BridgeSettings(
        name="main",
        topics=read_topics(routes, "test"),
        tick_seconds=0.1,
        cancel_grace_seconds=0.5,
    )
    return replace(settings, **more)


@asynccontextmanager
async def locked(url: str, job: Job) -> AsyncIterator[None]:
    """A transaction of somebody else's on PostgreSQL that keeps a job's row locked."""
    raw = await asyncpg.connect(url)
    try:
        await raw.execute("BEGIN")
        await raw.execute("SELECT 1 FROM holdfast.jobs WHERE id = $1 FOR UPDATE", job.id)
        yield
    finally:
        await raw.close()


SHORT: dict[str, Any] = {"lease": 2 * SECOND, "heartbeat": 1 * SECOND}
"""Leases that pass while a test waits."""


class Site:
    """One bus and one store."""

    def __init__(self, server: NatsServer, store: Store) -> None:
        self.server = server
        self.store = store
        self.heard: dict[str, list[Any]] = {}
        self._client: Client | None = None
        self._tasks: list[asyncio.Task[Any]] = []

    @property
    def client(self) -> Client:
        assert self._client is not None
        return self._client

    async def open(self) -> None:
        self._client = await nats.connect(
            self.server.url, max_reconnect_attempts=-1, reconnect_time_wait=0.1, error_cb=_ignore
        )

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.client.close()

    def bus(self, jetstream: JetStreamMode = JetStreamMode.AUTO) -> NatsBus:
        return NatsBus(self.server.url, "main", kept=KEPT_SUBJECTS, jetstream=jetstream)

    @asynccontextmanager
    async def bridge(
        self,
        settings: BridgeSettings | None = None,
        *,
        trust: Trust | None = None,
        store: Store | None = None,
    ) -> AsyncIterator[BusBridge]:
        """Run a bridge for as long as the block runs, and stop it in order."""
        made = BusBridge(
            store or self.store,
            self.bus(),
            settings or settings_of(),
            trust or Trust("holdfast-main"),
        )
        task = asyncio.create_task(made.run())
        await _first(made.ready.wait(), task)
        try:
            yield made
        finally:
            made.stop()
            await asyncio.wait_for(task, LIMIT_SECONDS)

    async def worker(
        self, subject: str, handler: Handler, *, name: str = "worker-1", **more: Any
    ) -> None:
        """Run the SDK's worker; returns once the server knows its subscription."""
        made: list[Client] = []

        async def connect(**given: Any) -> Client:
            made.append(await nats.connect(**given, max_reconnect_attempts=-1, error_cb=_ignore))
            return made[0]

        task = asyncio.create_task(
            run_worker(
                self.server.url, subject, handler, sender_id=name, connect_fn=connect, **more
            )
        )
        self._tasks.append(task)
        await until(lambda: bool(made) and bool(made[0]._subs), "the worker to subscribe")
        await made[0].flush()

    async def submit(self, job_id: str, topic: str = "job.once", **fields: Any) -> None:
        """Submit by the SDK's client."""
        trace, sender = fields.pop("trace", f"trace-{job_id}"), fields.pop("sender", "client")
        key = fields.pop("private_key", None)
        request = job_pb2.JobRequest(job_id=job_id, topic=topic, **fields)
        await submit_job(self.client, request, trace, sender, key)
        await self.client.flush()

    async def say(self, job_id: str, status: str, **fields: Any) -> None:
        """Send a result by hand, as some worker would."""
        packet = result_packet(job_id, status, **fields)
        await self.send("sys.job.result", packet.SerializeToString(deterministic=True))

    async def send(self, subject: str, data: bytes) -> None:
        await self.client.publish(subject, data)
        await self.client.flush()

    async def listen(self, subject: str) -> list[Any]:
        """Collect the packets that are published on a subject from now on."""
        heard = self.heard.setdefault(subject, [])

        async def note(message: Any) -> None:
            packet = buspacket_pb2.BusPacket()
            packet.ParseFromString(message.data)
            heard.append(packet)

        await self.client.subscribe(subject, cb=note)
        await self.client.flush()
        return heard

    async def find(self, job_id: str) -> Job | None:
        id_ = await self.store.look_up("default", KeyKind.JOB_ID, job_id)
        return None if id_ is None else (await self.store.get([id_]))[0]

    async def job(self, job_id: str) -> Job:
        job = await self.find(job_id)
        assert job is not None, job_id
        return job

    async def until(self, job_id: str, condition: Callable[[Job], bool], what: str) -> Job:
        found: list[Job] = []

        async def holds() -> bool:
            job = await self.find(job_id)
            found[:] = [] if job is None else [job]
            return job is not None and condition(job)

        await until_async(holds, f"{job_id} {what}", lambda: found)
        return found[0]

    async def ended(self, job_id: str) -> Job:
        return await self.until(job_id, lambda job: job.terminal, "to end")

    async def out(self, job_id: str) -> Job:
        return await self.until(job_id, lambda job: job.owned, "to be dispatched")

    async def events(self, job_id: str) -> list[LoggedEvent]:
        return await self.store.events((await self.job(job_id)).id)

    async def until_served(self, program: Any) -> None:
        """Wait until a bridge in another process has carried a job."""
        await until(lambda: "bridging" in program.log(), "the bridge to start")
        number = 0

        async def carried() -> bool:
            # Before it has made its stream, or subscribed, a submit is lost.
            nonlocal number
            number += 1
            await self.submit(f"first-{number}")
            await asyncio.sleep(0.2)
            job = await self.find("first-1") or await self.find(f"first-{number}")
            return job is not None and job.terminal

        await until_async(carried, "it to serve", program.log)

    async def sweep(self) -> None:
        """Sweep once, as a reconciler does."""
        await sweep(self.store, Actor(Role.RECONCILER, "test"), jitter=lambda: 0.0)

    def sweeping(self) -> None:
        """Sweep again and again until the test ends."""

        async def loop() -> None:
            while True:
                await self.sweep()
                await asyncio.sleep(0.1)

        self._tasks.append(asyncio.create_task(loop()))


def result_packet(
    job_id: str,
    status: str,
    *,
    worker: str = "worker-1",
    attempt: int | None = None,
    trace: str = "t",
    version: int = 1,
    **fields: Any,
) -> Any:
    """Make a packet with a result."""
    packet = buspacket_pb2.BusPacket(trace_id=trace, sender_id=worker, protocol_version=version)
    packet.created_at.GetCurrentTime()
    result = job_pb2.JobResult(job_id=job_id, worker_id=worker, **fields)
    result.status = job_pb2.JobStatus.Value(f"JOB_STATUS_{status}")
    if attempt is not None:
        result.dispatch.attempt = attempt
        result.dispatch.dispatch_id = f"{job_id}:{attempt}"
    packet.job_result.CopyFrom(result)
    return packet


async def succeed(request: Any) -> Any:
    """Handle a job: succeed, with a result that names it."""
    return job_pb2.JobResult(
        job_id=request.job_id,
        status=job_pb2.JOB_STATUS_SUCCEEDED,
        result_ptr=f"redis://result/{request.job_id}",
        execution_ms=3,
    )


async def _ignore(error: Exception) -> None:
    """Take no notice: the tests end servers."""


async def _first(ready: Any, task: asyncio.Task[Any]) -> None:
    waiting = asyncio.ensure_future(ready)
    await asyncio.wait([waiting, task], return_when=asyncio.FIRST_COMPLETED, timeout=LIMIT_SECONDS)
    if task.done():
        waiting.cancel()
        task.result()
    assert waiting.done()


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until something holds."""

    async def holds() -> bool:
        return condition()

    await until_async(holds, what)


async def until_async(
    condition: Callable[[], Awaitable[bool]], what: str, shown: Callable[[], object] = str
) -> None:
    """Wait until something holds that has to be asked for."""
    limit = time.monotonic() + LIMIT_SECONDS
    while not await condition():
        if time.monotonic() > limit:
            raise TimeoutError(f"waited {LIMIT_SECONDS:g} s for {what}: {shown()}")
        await asyncio.sleep(0.02)


def refused(bridge: BusBridge, channel: str, reason: str) -> int:
    """How many packets a bridge has refused for a reason."""
    return bridge.meters.bus.refused.get((channel, reason), 0)


__all__ = ["ROUTES", "SHORT", "Site", "refused", "result_packet", "settings_of", "succeed", "until"]
