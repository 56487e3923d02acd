"""The bus as a contender: jobs over a bridge beside a bare loop that relays the same packets.

`python -m bench.programs.bus carry --url STORE --directory NATS_URL --jobs N`. Client, relay or
bridge, and worker share this process, with the same signatures: the client signs, whoever is in
between verifies and signs anew, the worker verifies and signs, and that is verified again.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from contextlib import suppress
from typing import Any

import nats
from cap import run_worker
from cap.packet_boundary import finalize_packet, parse_packet, verify_packet
from cap.pb.cordum.agent.v1 import buspacket_pb2, job_pb2
from cryptography.hazmat.primitives.asymmetric import ec
from nats.aio.client import Client

from bench.programs.replies import Reply, Stretch, Verb, reply_to
from holdfast.admission.topics import read_topics
from holdfast.buses.cap import KEPT_SUBJECTS
from holdfast.buses.nats import NatsBus
from holdfast.buses.rules import SenderRule
from holdfast.buses.trust import Trust
from holdfast.services.bus_bridge.bridge import BusBridge
from holdfast.services.bus_bridge.settings import BridgeSettings
from holdfast.wiring import opened, read_address

TOPIC, BARE_SUBMIT, BARE_RESULT = "job.bench", "bare.submit", "bare.result"
CLIENT, WORKER, BETWEEN = "client", "worker", "holdfast-main"
IN_FLIGHT = 500
WARM_JOBS = 100
_LOG = logging.getLogger(__name__)
KEYS = {name: ec.generate_private_key(ec.SECP256R1()) for name in (CLIENT, WORKER, BETWEEN)}
PUBLIC = {name: key.public_key() for name, key in KEYS.items()}


async def carry(given: argparse.Namespace) -> Reply:
    """Carry jobs over the bare relay, then as many over a bridge."""
    client = await nats.connect(given.directory)
    bare = await _time_bare(client, given.jobs)
    ours = await _time_bridge(client, given)
    await client.close()
    return {"jobs": given.jobs, "bare_seconds": bare, "seconds": ours}


def _packet(name: str) -> Any:
    packet = buspacket_pb2.BusPacket(trace_id=name, sender_id=CLIENT, protocol_version=1)
    packet.created_at.GetCurrentTime()
    packet.job_request.job_id = name
    packet.job_request.topic = TOPIC
    packet.job_request.context_ptr = f"redis://context/{name}"
    return packet


def _sealed(packet: Any, sender: str) -> bytes:
    packet.sender_id = sender
    return bytes(finalize_packet(packet, KEYS[sender]).SerializeToString(deterministic=True))


def _read(data: bytes, sender: str) -> Any:
    packet = parse_packet(data)
    if not verify_packet(packet, {sender: PUBLIC[sender]}, _LOG):
        raise ValueError("a signature is wrong")
    return packet


async def _work(request: Any) -> Any:
    return job_pb2.JobResult(
        job_id=request.job_id, status=job_pb2.JOB_STATUS_SUCCEEDED, result_ptr="redis://result"
    )


class _Ends:
    """Counts ends until all are there; a submitter waits while too many are under way."""

    def __init__(self) -> None:
        self.count = 0
        self._changed = asyncio.Event()

    def add(self) -> None:
        self.count += 1
        self._changed.set()

    async def reach(self, count: int) -> None:
        while self.count < count:
            self._changed.clear()
            await self._changed.wait()


async def _submit(client: Client, subject: str, names: list[str], ends: _Ends) -> None:
    start = ends.count
    for number, name in enumerate(names):
        await ends.reach(start + number - IN_FLIGHT)
        await client.publish(subject, _sealed(_packet(name), CLIENT))
    await ends.reach(start + len(names))


async def _time_bare(client: Client, jobs: int) -> float:
    ends = _Ends()

    async def relay(message: Any) -> None:
        await client.publish(TOPIC, _sealed(_read(message.data, CLIENT), BETWEEN))

    async def work(message: Any) -> None:
        packet = _read(message.data, BETWEEN)
        result = await _work(packet.job_request)
        result.worker_id = WORKER
        packet.job_result.CopyFrom(result)
        await client.publish(BARE_RESULT, _sealed(packet, WORKER))

    async def end(message: Any) -> None:
        _read(message.data, WORKER)
        ends.add()

    handlers = {BARE_SUBMIT: relay, TOPIC: work, BARE_RESULT: end}
    taken = [await client.subscribe(subject, cb=handler) for subject, handler in handlers.items()]
    await _submit(client, BARE_SUBMIT, [f"warm-{n}" for n in range(WARM_JOBS)], ends)
    stretch = Stretch()
    await _submit(client, BARE_SUBMIT, [f"bare-{n}" for n in range(jobs)], ends)
    seconds = float(stretch.reply(jobs)["seconds"])
    for one in taken:
        await one.unsubscribe()
    return seconds


async def _time_bridge(client: Client, given: argparse.Namespace) -> float:
    topics = read_topics({TOPIC: {"bus": "main", "max_in_flight": IN_FLIGHT}}, "bench")
    trust = Trust(
        BETWEEN,
        rules={name: SenderRule() for name in (CLIENT, WORKER)},
        keys={name: PUBLIC[name] for name in (CLIENT, WORKER)},
        private_key=KEYS[BETWEEN],
    )
    ends = _Ends()
    bus = NatsBus(given.directory, "main", kept=KEPT_SUBJECTS)
    async with opened(read_address(given.url)) as store:
        bridge = BusBridge(store, bus, BridgeSettings(name="main", topics=topics), trust)
        watch = asyncio.create_task(_watch(bridge, ends))
        serve = asyncio.create_task(bridge.run())
        worker = asyncio.create_task(
            run_worker(
                *(given.directory, TOPIC, _work),
                sender_id=WORKER,
                private_key=KEYS[WORKER],
                public_keys={BETWEEN: PUBLIC[BETWEEN]},
            )
        )
        await bridge.ready.wait()
        await _submit(client, "sys.job.submit", [f"warm-{n}" for n in range(WARM_JOBS)], ends)
        stretch = Stretch()
        await _submit(client, "sys.job.submit", [f"j-{n}" for n in range(given.jobs)], ends)
        seconds = float(stretch.reply(given.jobs)["seconds"])
        bridge.stop()
        await serve
        for task in (worker, watch):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
    return seconds


async def _watch(bridge: BusBridge, ends: _Ends) -> None:
    """Follow the results that are recorded."""
    while True:
        applied = bridge.meters.bus.applied.get("result", 0)
        while ends.count < applied:
            ends.add()
        await asyncio.sleep(0.002)


VERBS: dict[str, Verb] = {"carry": carry}

if __name__ == "__main__":
    reply_to(VERBS)
