"""Packets that are not believed: refused, counted by reason, and never kept in memory (case 41)."""

from __future__ import annotations

import logging
import tracemalloc
from typing import Any

import pytest
from cap.packet_boundary import finalize_packet
from cap.pb.cordum.agent.v1 import buspacket_pb2, job_pb2
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from holdfast.buses.cap import (
    PACKET_BYTES,
    Dispatch,
    OwnPacket,
    PacketRefused,
    PublishedOutcome,
    read_packet,
    write_dispatch,
    write_outcome,
)
from holdfast.buses.rules import SenderRule
from holdfast.buses.trust import WINDOW, Trust, read_trust
from holdfast.errors import BadConfig
from holdfast.lifecycle.states import Priority
from holdfast.ports.bus import BusChannel, BusWord, WorkerResult
from tests.buses.site import Site, refused, result_packet, settings_of, succeed, until

ANYONE = Trust("holdfast-main")
KEY = ec.generate_private_key(ec.SECP256R1())
OTHER_KEY = ec.generate_private_key(ec.SECP256R1())


def _read(data: bytes, channel: BusChannel = BusChannel.RESULT, **more: Any) -> BusWord:
    return read_packet(data, channel, more.pop("trust", ANYONE), now=more.pop("now", None), **more)


def _bytes(packet: Any) -> bytes:
    return bytes(packet.SerializeToString(deterministic=True))


def _request_packet(**fields: Any) -> Any:
    packet = buspacket_pb2.BusPacket(trace_id="t", sender_id="client", protocol_version=1)
    packet.created_at.GetCurrentTime()
    packet.job_request.CopyFrom(job_pb2.JobRequest(job_id="j", topic="job.once", **fields))
    return packet


def _signed(packet: Any, key: ec.EllipticCurvePrivateKey = KEY) -> bytes:
    return _bytes(finalize_packet(packet, key))


@pytest.mark.req("A8", "A12")
@pytest.mark.parametrize(
    ("data", "channel", "reason"),
    [
        (b"\xff" * 40, BusChannel.RESULT, "malformed"),
        (b"", BusChannel.RESULT, "version"),
        (b"x" * (PACKET_BYTES + 1), BusChannel.RESULT, "oversized"),
        (_bytes(result_packet("j", "FAILED", version=2)), BusChannel.RESULT, "version"),
        (_bytes(result_packet("", "FAILED")), BusChannel.RESULT, "invalid"),
        (_bytes(result_packet("j", "FAILED", execution_ms=-1)), BusChannel.RESULT, "invalid"),
        (_bytes(result_packet("j", "UNSPECIFIED")), BusChannel.RESULT, "invalid"),
        # A worker's word where clients submit, and a client's where workers report.
        (_bytes(result_packet("j", "FAILED")), BusChannel.SUBMIT, "misplaced"),
        (_bytes(_request_packet()), BusChannel.RESULT, "misplaced"),
        (_bytes(result_packet("j", "FAILED")), BusChannel.CANCEL, "misplaced"),
    ],
    ids=[
        *("garbage", "nothing", "too-large", "version-2", "no-id", "negative", "no-status"),
        *("result-as-submit", "request-as-result", "result-as-cancel"),
    ],
)
def test_a_packet_is_refused_with_a_reason(data: bytes, channel: BusChannel, reason: str) -> None:
    with pytest.raises(PacketRefused) as caught:
        _read(data, channel)
    assert caught.value.reason == reason


def test_a_worker_must_send_its_result_under_its_own_name() -> None:
    packet = result_packet("j", "FAILED")
    packet.job_result.worker_id = "somebody-else"
    with pytest.raises(PacketRefused, match="worker_id"):
        _read(_bytes(packet))


def test_our_own_packets_are_left_out() -> None:
    outcome = PublishedOutcome(job_id="j", trace_id="t", at=1_000_000, status="TIMEOUT")
    with pytest.raises(OwnPacket):
        _read(write_outcome(outcome, ANYONE))


@pytest.mark.req("A12", "A19")
def test_the_body_of_a_job_decides_neither_its_dispatch_nor_its_tenant() -> None:
    body = {
        "dispatch": {"dispatch_id": "forged", "attempt": 9, "worker_id": "someone"},
        "identity": {"principal_id": "root"},
        "tenant_id": "another",
        "meta": {"tenant_id": "another", "capability": "kept"},
        "memory_id": "kept",
        "no_such_field": 1,
    }
    dispatch = Dispatch(
        job_id="j",
        topic="job.once",
        tenant="own",
        attempt=1,
        trace_id="t",
        at=1,
        priority=Priority.BATCH,
        context_ptr=None,
        adapter_id=None,
        env={},
        labels={},
        workflow_id=None,
        step_index=None,
        rest=body,
    )
    packet = buspacket_pb2.BusPacket()
    packet.ParseFromString(write_dispatch(dispatch, ANYONE))
    request = packet.job_request
    assert (request.dispatch.dispatch_id, request.dispatch.attempt) == ("j:1", 1)
    assert not request.HasField("identity")
    assert (request.tenant_id, request.meta.tenant_id) == ("own", "own")
    assert (request.meta.capability, request.memory_id) == ("kept", "kept")


def _trust(**rules: SenderRule) -> Trust:
    return Trust("holdfast-main", rules=rules, keys={"worker-1": KEY.public_key()})


@pytest.mark.req("A12")
def test_as_soon_as_one_sender_is_configured_no_other_is_believed() -> None:
    trust = Trust(
        "holdfast-main",
        rules={
            "client": SenderRule(channels=(BusChannel.SUBMIT,), topics=("job.other.*",)),
            "worker-2": SenderRule(channels=(BusChannel.RESULT,)),
        },
    )
    assert isinstance(
        _read(_bytes(result_packet("j", "FAILED", worker="worker-2")), trust=trust), WorkerResult
    )
    for packet, channel, why in (
        (result_packet("j", "FAILED", worker="stranger"), BusChannel.RESULT, "unknown"),
        (result_packet("j", "FAILED", worker="client"), BusChannel.RESULT, "may not send"),
        (_request_packet(), BusChannel.SUBMIT, "topic"),
    ):
        with pytest.raises(PacketRefused, match=why) as caught:
            _read(_bytes(packet), channel, trust=trust)
        assert caught.value.reason == "sender"


def test_a_signed_packet_is_believed_once_and_for_five_minutes() -> None:
    rules = {"worker-1": SenderRule()}
    packet = result_packet("j", "FAILED")
    at, data = packet.created_at.ToMicroseconds(), _signed(packet)
    assert isinstance(_read(data, trust=_trust(**rules), now=at), WorkerResult)
    for wrong, now, reason in (
        (_bytes(packet), at, "signature"),
        (_signed(packet, OTHER_KEY), at, "signature"),
        (data.replace(b"t", b"u", 1), at, "signature"),
        (data, at + WINDOW + 1, "stale"),
        (data, at - WINDOW - 1, "stale"),
    ):
        with pytest.raises(PacketRefused) as caught:
            _read(wrong, trust=_trust(**rules), now=now)
        assert caught.value.reason == reason
    trust = _trust(**rules)
    _read(data, trust=trust, now=at)
    with pytest.raises(PacketRefused) as caught:
        _read(data, trust=trust, now=at + 1)
    assert caught.value.reason == "replayed"
    # A stream sends again what was not acknowledged: that is no replay.
    assert isinstance(_read(data, trust=trust, now=at + 1, redelivered=True), WorkerResult)


ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Of the group of P-256."""


def test_a_replay_under_the_other_signature_of_the_same_packet_is_refused() -> None:
    trust = _trust(**{"worker-1": SenderRule()})
    packet = finalize_packet(result_packet("j", "FAILED"), KEY)
    at = packet.created_at.ToMicroseconds()
    _read(_bytes(packet), trust=trust, now=at)
    # Anyone can make it: a signature (r, s) has a twin (r, n - s), which is valid, too.
    r, s = decode_dss_signature(packet.signature)
    packet.signature = encode_dss_signature(r, ORDER - s)
    with pytest.raises(PacketRefused) as caught:
        _read(_bytes(packet), trust=trust, now=at)
    assert caught.value.reason == "replayed"


def test_a_replay_that_is_written_otherwise_is_refused_and_another_packet_is_not() -> None:
    trust = _trust(**{"worker-1": SenderRule()})
    packet = result_packet("j", "FAILED")
    at, data = packet.created_at.ToMicroseconds(), _signed(packet)
    _read(data, trust=trust, now=at)
    # The same field a second time: it is read as the same packet, so that the signature holds.
    with pytest.raises(PacketRefused) as caught:
        _read(data + buspacket_pb2.BusPacket(trace_id="t").SerializeToString(), trust=trust, now=at)
    assert caught.value.reason == "replayed"
    # What no version of the SDK knows is signed, too: it cannot be added by others.
    unknown = b"\xfa\x3f\x01x"
    with pytest.raises(PacketRefused) as caught:
        _read(data + unknown, trust=trust, now=at)
    assert caught.value.reason == "signature"
    packet.MergeFromString(unknown)
    assert isinstance(_read(_signed(packet), trust=trust, now=at), WorkerResult)


def test_keys_are_read_from_files_and_only_p_256_will_do(tmp_path: Any) -> None:
    own, theirs, wrong = tmp_path / "own.pem", tmp_path / "theirs.pem", tmp_path / "wrong.pem"
    own.write_bytes(KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    theirs.write_bytes(
        OTHER_KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    )
    curve = ec.generate_private_key(ec.SECP384R1()).public_key()
    wrong.write_bytes(curve.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    trust = read_trust("holdfast-main", {"w": SenderRule(public_key=str(theirs))}, str(own))
    assert trust.signed
    assert trust.key("w") is not None
    for path in (wrong, own, tmp_path / "missing.pem"):
        with pytest.raises(BadConfig, match=path.name):
            read_trust("holdfast-main", {"w": SenderRule(public_key=str(path))}, None)


@pytest.mark.req("A12", "A19")
async def test_a_signed_round_trip_and_a_forger_beside_it(site: Site) -> None:
    bridge_key, client_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    trust = Trust(
        "holdfast-main",
        rules={"client": SenderRule(), "worker-1": SenderRule()},
        keys={"client": client_key.public_key(), "worker-1": KEY.public_key()},
        private_key=bridge_key,
    )
    async with site.bridge(trust=trust) as bridge:
        await site.worker(
            "job.once",
            succeed,
            public_keys={"holdfast-main": bridge_key.public_key()},
            private_key=KEY,
        )
        await site.submit("forged", private_key=OTHER_KEY)
        await site.submit("unsigned")
        await site.submit("j", private_key=client_key)
        assert (await site.ended("j")).succeeded
        assert refused(bridge, "submit", "signature") == 2
        assert await site.find("forged") is None
        await site.say("j", "FAILED", worker="stranger")
        await until(lambda: refused(bridge, "result", "sender") == 1, "the stranger's refusal")


async def test_a_flood_of_garbage_leaves_memory_flat_and_a_few_lines_in_the_log(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    forged = [
        b"\xff" * 64,
        _bytes(result_packet("j", "FAILED", version=2)),
        _bytes(result_packet("unknown", "SUCCEEDED")),
    ]
    async with site.bridge(settings_of()) as bridge:
        await site.worker("job.once", succeed)

        async def flood(rounds: int) -> None:
            before = sum(bridge.meters.bus.refused.values())
            for number in range(rounds):
                await site.client.publish("sys.job.result", forged[number % 3])
            await site.client.flush()
            total = before + rounds
            await until(
                lambda: sum(bridge.meters.bus.refused.values()) >= total, "all to be refused"
            )

        await flood(1500)
        tracemalloc.start()
        await flood(1500)
        first = tracemalloc.get_traced_memory()[0]
        await flood(3000)
        second = tracemalloc.get_traced_memory()[0]
        tracemalloc.stop()
        assert second - first < 500_000
        # And a job still goes through.
        await site.submit("real")
        assert (await site.ended("real")).succeeded
    lines = [one for one in caplog.records if "refused on result" in one.message]
    assert 0 < len(lines) < 60
    assert set(bridge.meters.bus.refused) <= {
        ("result", "malformed"),
        ("result", "version"),
        ("result", "unknown_job"),
        ("result", "duplicate"),
    }
