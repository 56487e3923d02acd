"""Packets with anything in their fields: each is refused or applied, and stops none behind it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from cap.packet_boundary import finalize_packet
from cap.pb.cordum.agent.v1 import buspacket_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from holdfast.buses.cap import PacketRefused, read_packet
from holdfast.buses.rules import SenderRule
from holdfast.buses.trust import Trust
from holdfast.errors import StoreUnavailable
from holdfast.ports.bus import BusChannel, WorkerPresence
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
NUMBERS = (-(2**63), -(2**31), -1, 99, 2**31 - 1, 10**15, 2**63 - 1, 2**64 - 1)
FLOATS = (float("nan"), float("inf"), -1e38)
DEEP = 1
"""From this depth on one text and the far ends of numbers do."""


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
    for path in _paths(getattr(buspacket_pb2.BusPacket(), payload).DESCRIPTOR):
        for value in _values(path):
            packet = _packet(payload)
            if payload == "job_request":
                packet.job_request.job_id = f"spoiled-{len(made)}"
            try:
                _set(getattr(packet, payload), path, value)
            except (OverflowError, TypeError, ValueError):
                continue
            made.append(packet.SerializeToString())
    for seconds in (-(2**63), 10**15, 2**63 - 1):
        packet = _packet(payload)
        packet.created_at.seconds = seconds
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


def _paths(
    message: Descriptor, above: tuple[FieldDescriptor, ...] = ()
) -> Iterator[tuple[FieldDescriptor, ...]]:
    """Each field of a message, and each of the messages in it, by the fields that lead there."""
    for field in message.fields:
        if field.message_type is None or field.message_type.GetOptions().map_entry:
            yield (*above, field)
        else:
            yield from _paths(field.message_type, (*above, field))


def _values(path: tuple[FieldDescriptor, ...]) -> tuple[Any, ...]:
    field, deep = path[-1], len(path) > DEEP
    texts = TEXTS[:1] if deep else TEXTS
    if field.message_type is not None:
        return tuple({text: text} for text in texts)
    if field.type == FieldDescriptor.TYPE_STRING:
        return texts
    if field.type == FieldDescriptor.TYPE_BYTES:
        return (b"\xff\0",)
    if field.type == FieldDescriptor.TYPE_FLOAT:
        return FLOATS
    return (NUMBERS[0], NUMBERS[1], *NUMBERS[-4:]) if deep else NUMBERS


def _set(body: Any, path: tuple[FieldDescriptor, ...], value: Any) -> None:
    for field in path[:-1]:
        body = getattr(body, field.name)
        body = body.add() if field.is_repeated else body
    name = path[-1].name
    if isinstance(value, dict):
        getattr(body, name).update(value)
    elif path[-1].is_repeated:
        getattr(body, name).extend([value] * 3)
    else:
        setattr(body, name, value)


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


@pytest.mark.req("A8")
@pytest.mark.parametrize("seconds", [-(2**63), 10**15, 2**63 - 1])
def test_a_time_out_of_range_is_refused_like_anything_else_that_cannot_be_read(
    seconds: int,
) -> None:
    trust = Trust("h", rules={"worker-1": SenderRule()}, keys={"worker-1": KEY.public_key()})
    deep, signed = _packet("job_request"), _packet("job_request")
    deep.job_request.context_ref.expires_at.seconds = seconds
    signed.created_at.seconds = seconds
    for packet, believed in ((deep, Trust("h")), (finalize_packet(signed, KEY), trust)):
        with pytest.raises(PacketRefused) as caught:
            read_packet(packet.SerializeToString(), BusChannel.SUBMIT, believed, now=1)
        assert caught.value.reason in ("invalid", "signature", "stale")
        assert caught.value.sender == "worker-1"


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
