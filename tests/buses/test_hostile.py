"""Packets with anything in their fields: each is refused or applied, and stops none behind it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from cap.pb.cordum.agent.v1 import buspacket_pb2
from google.protobuf.descriptor import FieldDescriptor

from holdfast.buses.rules import SenderRule
from holdfast.buses.trust import Trust
from holdfast.errors import StoreUnavailable
from holdfast.ports.bus import WorkerPresence
from holdfast.services.bus_bridge import listeners
from holdfast.services.bus_bridge.listeners import (
    MOST_CAPABILITIES,
    MOST_OF_A_WORKER,
    MOST_WORKERS,
    SERVED_SECONDS,
    Listeners,
)
from tests.buses.site import Site, succeed, until
from tests.buses.test_packets import KEY

both_engines = pytest.mark.parametrize("engine", ["sqlite", "postgres"])

SUBJECTS = {
    "job_request": "sys.job.submit",
    "job_result": "sys.job.result",
    "job_progress": "sys.job.progress",
    "job_cancel": "sys.job.cancel",
    "heartbeat": "sys.heartbeat",
    "handshake": "sys.handshake",
}
TEXTS = ("nul\0here", "x" * 5000, "two\nlines", "\ud7ff\U0001f600 \u202e", " ", "a\x7f\x1b[31m")
NUMBERS = (-(2**31), -1, 2**31 - 1, 99)


def _packet(payload: str) -> Any:
    """A valid packet of a payload."""
    packet = buspacket_pb2.BusPacket(trace_id="t", sender_id="worker-1", protocol_version=1)
    packet.created_at.GetCurrentTime()
    body = getattr(packet, payload)
    body.SetInParent()
    for name, value in (
        *(("job_id", "held"), ("worker_id", "worker-1"), ("topic", "job.once")),
        *(("status", 5), ("requested_by", "someone"), ("component_id", "worker-1"), ("role", 1)),
    ):
        if name in body.DESCRIPTOR.fields_by_name:
            setattr(body, name, value)
    return packet


def _spoiled(payload: str) -> list[bytes]:
    """Packets of a payload, each with one field that no honest sender would write."""
    made: list[bytes] = []
    for field in getattr(buspacket_pb2.BusPacket(), payload).DESCRIPTOR.fields:
        for value in _values(field):
            packet = _packet(payload)
            if payload == "job_request":
                packet.job_request.job_id = f"spoiled-{len(made)}"
            try:
                _set(getattr(packet, payload), field, value)
            except (TypeError, ValueError):
                continue
            made.append(packet.SerializeToString())
    for name in ("sender_id", "trace_id"):
        for text in TEXTS:
            packet = _packet(payload)
            setattr(packet, name, text)
            body = getattr(packet, payload)
            if name == "sender_id" and "worker_id" in body.DESCRIPTOR.fields_by_name:
                body.worker_id = text
            made.append(packet.SerializeToString())
    return made


def _values(field: FieldDescriptor) -> tuple[Any, ...]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return tuple({text: text} for text in TEXTS)
    if field.type == FieldDescriptor.TYPE_STRING:
        return TEXTS
    return NUMBERS


def _set(body: Any, field: FieldDescriptor, value: Any) -> None:
    if isinstance(value, dict):
        getattr(body, field.name).update(value)
    elif field.is_repeated:
        getattr(body, field.name).extend([value] * 3)
    elif field.message_type is None:
        setattr(body, field.name, value)
    else:
        for inner in field.message_type.fields:
            if inner.message_type is None and inner.type == FieldDescriptor.TYPE_STRING:
                _set(getattr(body, field.name), inner, TEXTS[0])


@both_engines
@pytest.mark.parametrize("payload", SUBJECTS)
@pytest.mark.req("A8", "A10")
async def test_a_packet_with_anything_in_its_fields_stops_none_behind_it(
    site: Site, payload: str
) -> None:
    packets = _spoiled(payload)
    async with site.bridge() as bridge:
        await site.worker("job.any.good", succeed)
        await site.listen("job.once")
        await site.submit("held")
        await site.out("held")
        for data in packets:
            await site.client.publish(SUBJECTS[payload], data)
        await site.client.flush()
        await site.submit("real", "job.any.good")
        assert (await site.ended("real")).succeeded
        channel = SUBJECTS[payload].rpartition(".")[2]
        await until(
            lambda: bridge.meters.bus.received.get(channel, 0) >= len(packets), "all to be taken"
        )
        # Behind the spoiled ones of every channel.
        await site.submit("last", "job.any.good")
        assert (await site.ended("last")).succeeded
    failed = {key: n for key, n in bridge.meters.bus.refused.items() if key[1] == "internal"}
    assert failed == {}


def _presence(sender: str, capabilities: Iterable[str] | None) -> WorkerPresence:
    given = None if capabilities is None else frozenset(capabilities)
    return WorkerPresence(sender=sender, topics=(), capabilities=given, concurrency=1)


def test_capabilities_are_bounded_and_no_worker_takes_the_place_of_another() -> None:
    found = Listeners(lambda: None)
    many = [f"c{number}" for number in range(5000)] + ["nul\0here", ""]
    for _ in range(2):
        found._learn(_presence("greedy", many))
    assert len(found.capabilities) == MOST_OF_A_WORKER
    assert "nul\0here" not in found.capabilities
    found._learn(_presence("honest", ["gpu", "adapter:x"]))
    assert {"gpu", "adapter:x"} <= found.capabilities
    for number in range(MOST_WORKERS - 2):
        found._learn(_presence(f"greedy-{number}", [f"{number}-{one}" for one in many]))
    # All together have a limit, too: the store refuses an announcement that is too long.
    assert len(found.capabilities) == MOST_CAPABILITIES
    found._learn(_presence("greedy", ["c1"]))
    assert "c2" not in found.capabilities


def test_capabilities_of_few_come_before_more_of_the_many() -> None:
    found = Listeners(lambda: None)
    for number in range(40):
        found._learn(_presence(f"greedy-{number}", [f"{number}-{one}" for one in range(50)]))
    found._learn(_presence("honest", ["gpu"]))
    assert len(found.capabilities) == MOST_CAPABILITIES
    assert "gpu" in found.capabilities


def test_capabilities_go_with_their_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(listeners, "monotonic", lambda: now)
    found = Listeners(lambda: None)
    found._learn(_presence("leaves", ["gpu", "both"]))
    now += SERVED_SECONDS / 2
    found._learn(_presence("stays", ["docker", "both"]))
    # A handshake names none, and takes none away.
    found._learn(_presence("stays", None))
    assert found.capabilities == {"gpu", "docker", "both"}
    now += SERVED_SECONDS / 2
    assert found.capabilities == {"docker", "both"}
    found._learn(_presence("stays", []))
    assert found.capabilities == set()


async def test_a_signed_packet_is_not_lost_while_the_store_cannot_tell_the_time(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust = Trust(
        "holdfast-main", rules={"client": SenderRule()}, keys={"client": KEY.public_key()}
    )
    real, away = site.store.clock, False

    async def tell() -> Any:
        if away:
            raise StoreUnavailable("away")
        return await real()

    monkeypatch.setattr(site.store, "clock", tell)
    async with site.bridge(trust=trust) as bridge:
        away = True
        await site.submit("j", private_key=KEY)
        await until(lambda: bridge.meters.bus.received.get("submit") == 1, "it to be taken")
        away = False
        await site.until("j", lambda job: True, "to be stored")
