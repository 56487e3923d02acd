"""CAP, the protocol of the bus: packets to our words and back. Pure; `buses.nats` carries them.

A packet is checked in the order of what a check costs, and refused with a reason that is counted.
The checks of its shape and of its signature are the SDK's own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from cap.packet_boundary import finalize_packet, parse_packet, verify_packet
from cap.pb.cordum.agent.v1 import buspacket_pb2, job_pb2
from cap.validate import validate_bus_packet
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import Message as ProtoMessage
from msgspec import Struct

from holdfast.buses.trust import Trust
from holdfast.lifecycle.states import Priority
from holdfast.ports.bus import (
    BusChannel,
    BusWord,
    CancelOrder,
    JobOffer,
    WorkerPresence,
    WorkerProgress,
    WorkerResult,
    WorkerStatusWord,
)

PACKET_BYTES = 256 * 1024
"""Bytes of a packet: payloads travel by pointers."""
VERSION = 1
SUBJECTS = {
    BusChannel.SUBMIT: "sys.job.submit",
    BusChannel.RESULT: "sys.job.result",
    BusChannel.PROGRESS: "sys.job.progress",
    BusChannel.CANCEL: "sys.job.cancel",
    BusChannel.HEARTBEAT: "sys.heartbeat",
    BusChannel.HANDSHAKE: "sys.handshake",
    BusChannel.DEAD_LETTER: "sys.job.dlq",
    BusChannel.ALERT: "sys.alert",
}
KEPT_SUBJECTS = tuple(
    SUBJECTS[one] for one in (BusChannel.SUBMIT, BusChannel.RESULT, BusChannel.CANCEL)
)
"""What waits in a stream while no bridge runs, where the server has streams."""
_PAYLOADS = {
    BusChannel.SUBMIT: "job_request",
    BusChannel.RESULT: "job_result",
    BusChannel.PROGRESS: "job_progress",
    BusChannel.CANCEL: "job_cancel",
    BusChannel.HEARTBEAT: "heartbeat",
    BusChannel.HANDSHAKE: "handshake",
}
"""What may be in a packet by the subject that it came on (A12)."""

# The SDK logs each packet that it refuses: they are counted here, and may be very many.
_SILENT = logging.Logger("holdfast.buses.cap", logging.CRITICAL + 1)


class PacketRefused(Exception):
    """Why a packet is not read: a word that is counted, and the detail."""

    def __init__(self, reason: str, detail: str = "", sender: str | None = None) -> None:
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.sender = sender


class OwnPacket(Exception):
    """The packet is one that this bus has sent itself."""


def read_packet(
    data: bytes, channel: BusChannel, trust: Trust, *, now: int | None, redelivered: bool = False
) -> BusWord:
    """Return what a packet reports; raise PacketRefused, or OwnPacket for one of our own.

    `now` is when it was received, in microseconds; it is needed where packets are signed.
    """
    if len(data) > PACKET_BYTES:
        raise PacketRefused("oversized", f"{len(data):,} bytes")
    packet = _parse(data)
    if packet.sender_id == trust.sender_id:
        raise OwnPacket
    sender = packet.sender_id
    if packet.protocol_version != VERSION:
        raise PacketRefused("version", str(packet.protocol_version), sender)
    if packet.WhichOneof("payload") != _PAYLOADS.get(channel):
        raise PacketRefused("misplaced", f"{packet.WhichOneof('payload')} on {channel}", sender)
    try:
        if errors := validate_bus_packet(packet):
            raise PacketRefused("invalid", f"{errors[0].field} {errors[0].message}", sender)
        _check_sender(packet, channel, trust, now, redelivered)
        return _READERS[channel](packet)
    except PacketRefused:
        raise
    except Exception as error:
        # Not every value that the wire can carry has a meaning, such as a time out of range; which
        # of them raises what is the libraries' affair, and must stop no other packet.
        raise PacketRefused("invalid", type(error).__name__, sender) from error


def _parse(data: bytes) -> Any:
    try:
        return parse_packet(data)
    except Exception as error:
        raise PacketRefused("malformed", type(error).__name__) from error


def _check_sender(
    packet: Any, channel: BusChannel, trust: Trust, now: int | None, redelivered: bool
) -> None:
    """Raise PacketRefused unless the sender may use the channel and has signed where it must."""
    name = packet.sender_id
    topic = packet.job_request.topic if channel is BusChannel.SUBMIT else None
    if (fault := trust.fault(name, channel, topic)) is not None:
        raise PacketRefused("sender", fault, name)
    key = trust.key(name)
    if key is None:
        return
    if not verify_packet(packet, {name: key}, _SILENT):
        raise PacketRefused("signature", "missing" if not packet.signature else "wrong", name)
    sent_at = packet.created_at.ToMicroseconds()
    if now is not None and not trust.is_recent(sent_at, now):
        raise PacketRefused("stale", f"sent {(now - sent_at) / 1e6:.0f} s before", name)
    if not redelivered and trust.has_seen(_signed_part(packet), now):
        raise PacketRefused("replayed", "", name)


def _signed_part(packet: Any) -> bytes:
    """Return the bytes that a signature covers: all fields but itself, also unknown ones.

    A packet is known by them and not by its signature, of which anyone can make another.
    """
    rest = buspacket_pb2.BusPacket()
    rest.CopyFrom(packet)
    rest.ClearField("signature")
    return bytes(rest.SerializeToString(deterministic=True))


def _read_offer(packet: Any) -> JobOffer:
    request = packet.job_request
    meta, budget = request.meta, request.budget
    rest = job_pb2.JobRequest()
    rest.CopyFrom(request)
    for name in _COLUMNS:
        rest.ClearField(name)
    return JobOffer(
        sender=packet.sender_id,
        trace_id=packet.trace_id,
        job_id=request.job_id,
        topic=request.topic,
        priority=_PRIORITIES.get(request.priority, Priority.INTERACTIVE),
        tenant=request.tenant_id or meta.tenant_id or None,
        context_ptr=request.context_ptr or None,
        adapter_id=request.adapter_id or None,
        env=dict(request.env),
        labels=dict(request.labels),
        needs=frozenset(meta.requires),
        idempotency_key=meta.idempotency_key or None,
        deadline_ms=budget.deadline_ms or None,
        parent_job_id=request.parent_job_id or None,
        workflow_id=request.workflow_id or None,
        # A proto3 number that was not given is 0: only within a workflow does it count.
        step_index=request.step_index if request.workflow_id or request.step_index else None,
        rest=MessageToDict(rest, preserving_proto_field_name=True),
    )


_COLUMNS = (
    *("job_id", "topic", "priority", "context_ptr", "adapter_id", "env", "workflow_id"),
    *("step_index", "labels", "dispatch", "identity"),
)
"""Fields of a request that a job has a column for; `dispatch` and `identity` are for us to set."""
_PRIORITIES = {
    job_pb2.JOB_PRIORITY_INTERACTIVE: Priority.INTERACTIVE,
    job_pb2.JOB_PRIORITY_BATCH: Priority.BATCH,
    job_pb2.JOB_PRIORITY_CRITICAL: Priority.CRITICAL,
}
_WIRE_PRIORITIES = {priority: number for number, priority in _PRIORITIES.items()}
_STATUSES = {
    job_pb2.JOB_STATUS_RUNNING: WorkerStatusWord.RUNNING,
    job_pb2.JOB_STATUS_SUCCEEDED: WorkerStatusWord.SUCCEEDED,
    job_pb2.JOB_STATUS_FAILED: WorkerStatusWord.FAILED,
    job_pb2.JOB_STATUS_FAILED_RETRYABLE: WorkerStatusWord.FAILED,
    job_pb2.JOB_STATUS_FAILED_FATAL: WorkerStatusWord.FAILED_FOR_GOOD,
    job_pb2.JOB_STATUS_CANCELLED: WorkerStatusWord.CANCELLED,
    job_pb2.JOB_STATUS_TIMEOUT: WorkerStatusWord.TIMEOUT,
}
_MOST_MS = 2**53


def _read_result(packet: Any) -> WorkerResult:
    result = packet.job_result
    code = result.error_code
    if not code and result.error_code_enum:
        code = _error_name(result.error_code_enum)
    return WorkerResult(
        sender=packet.sender_id,
        job_id=result.job_id,
        status=_STATUSES.get(result.status, WorkerStatusWord.FORBIDDEN),
        worker=result.worker_id,
        attempt=_attempt(result),
        result_ptr=result.result_ptr or None,
        execution_ms=min(result.execution_ms, _MOST_MS) or None,
        error_code=code or None,
        error_message=result.error_message or None,
        artifact_ptrs=tuple(result.artifact_ptrs),
    )


def _error_name(number: int) -> str:
    try:
        return str(job_pb2.ErrorCode.Name(number)).removeprefix("ERROR_CODE_")
    except ValueError:
        return str(number)


def _attempt(payload: Any) -> int | None:
    """Return the attempt that a packet answers, if it carries the dispatch's identity."""
    return int(payload.dispatch.attempt) if payload.HasField("dispatch") else None


def _read_progress(packet: Any) -> WorkerProgress:
    progress = packet.job_progress
    given: dict[str, Any] = {
        "percent": progress.percent,
        "message": progress.message,
        "step_id": progress.step_id,
        "result_ptr": progress.result_ptr,
        "artifact_ptrs": list(progress.artifact_ptrs),
    }
    status = progress.status
    return WorkerProgress(
        sender=packet.sender_id,
        job_id=progress.job_id,
        worker=packet.sender_id,
        attempt=_attempt(progress),
        status=None if not status else _STATUSES.get(status, WorkerStatusWord.FORBIDDEN),
        data={name: value for name, value in given.items() if value or name == "percent"},
    )


def _read_cancel(packet: Any) -> CancelOrder:
    cancel = packet.job_cancel
    return CancelOrder(
        sender=packet.sender_id,
        job_id=cancel.job_id,
        reason=cancel.reason or None,
        requested_by=cancel.requested_by,
    )


def _read_heartbeat(packet: Any) -> WorkerPresence:
    beat = packet.heartbeat
    return WorkerPresence(
        sender=packet.sender_id,
        topics=(beat.pool,) if beat.pool else (),
        capabilities=frozenset(beat.capabilities),
        concurrency=max(beat.max_parallel_jobs, 1),
    )


def _read_handshake(packet: Any) -> WorkerPresence:
    shake = packet.handshake
    return WorkerPresence(
        sender=packet.sender_id,
        topics=tuple(shake.ready_topics),
        capabilities=None,
        concurrency=1,
    )


_READERS: Mapping[BusChannel, Callable[[Any], BusWord]] = {
    BusChannel.SUBMIT: _read_offer,
    BusChannel.RESULT: _read_result,
    BusChannel.PROGRESS: _read_progress,
    BusChannel.CANCEL: _read_cancel,
    BusChannel.HEARTBEAT: _read_heartbeat,
    BusChannel.HANDSHAKE: _read_handshake,
}


class Dispatch(Struct, frozen=True, kw_only=True):
    """A job that is to be sent to its topic."""

    job_id: str
    topic: str
    tenant: str
    attempt: int
    trace_id: str
    at: int
    """When it was claimed, by the store's clock."""
    priority: Priority
    context_ptr: str | None
    adapter_id: str | None
    env: Mapping[str, str]
    labels: Mapping[str, str]
    workflow_id: str | None
    step_index: int | None
    rest: Any
    """The body of the job: what a client's request had beside these."""


def write_dispatch(dispatch: Dispatch, trust: Trust) -> bytes:
    """Return the packet that sends a job to its topic."""
    request = job_pb2.JobRequest()
    _fill(request, dispatch.rest)
    _overrule(request, dispatch.tenant)
    request.job_id = dispatch.job_id
    request.topic = dispatch.topic
    request.priority = _WIRE_PRIORITIES[dispatch.priority]
    request.context_ptr = dispatch.context_ptr or ""
    request.adapter_id = dispatch.adapter_id or ""
    request.workflow_id = dispatch.workflow_id or ""
    request.step_index = dispatch.step_index or 0
    request.env.update(dispatch.env)
    request.labels.update(dispatch.labels)
    _identify(request, dispatch.job_id, dispatch.attempt)
    packet = _envelope(trust, dispatch.trace_id, dispatch.at)
    packet.job_request.CopyFrom(request)
    return _seal(packet, trust)


def _fill(request: ProtoMessage, rest: Any) -> None:
    """Set the fields of a request that a job's body names; raise ParseError if one does not fit.

    What has a column, or is for us to set, is not the body's to decide.
    """
    if not isinstance(rest, dict):
        return
    # A newer submitter may name what this version of the SDK does not know.
    ParseDict(rest, request, ignore_unknown_fields=True)
    for name in _COLUMNS:
        request.ClearField(name)


def _overrule(request: Any, tenant: str) -> None:
    """Correct the tenant that the body of a job names: it may come from any client."""
    for part in (request, request.meta):
        if part.tenant_id:
            part.tenant_id = tenant


def _identify(payload: Any, job_id: str, attempt: int) -> None:
    payload.dispatch.dispatch_id = f"{job_id}:{attempt}"
    payload.dispatch.attempt = attempt


def write_cancel(job_id: str, attempt: int, reason: str, *, at: int, trust: Trust) -> bytes:
    """Return the packet that asks a worker to end a job."""
    packet = _envelope(trust, job_id, at)
    packet.job_cancel.job_id = job_id
    packet.job_cancel.reason = reason
    packet.job_cancel.requested_by = trust.sender_id
    _identify(packet.job_cancel, job_id, attempt)
    return _seal(packet, trust)


class PublishedOutcome(Struct, frozen=True, kw_only=True):
    """The end of a job that is published for its client."""

    job_id: str
    trace_id: str
    at: int
    status: str
    """CAP's word: `DENIED`, `TIMEOUT`, …"""
    result_ptr: str | None = None
    error_code: str | None = None
    error_message: str | None = None
    attempt: int = 0


def write_outcome(outcome: PublishedOutcome, trust: Trust) -> bytes:
    """Return the packet of a result that no worker sent, or of a dead letter."""
    packet = _envelope(trust, outcome.trace_id, outcome.at)
    result = packet.job_result
    result.job_id = outcome.job_id
    result.status = job_pb2.JobStatus.Value(f"JOB_STATUS_{outcome.status}")
    result.worker_id = trust.sender_id
    result.result_ptr = outcome.result_ptr or ""
    result.error_code = outcome.error_code or ""
    result.error_message = outcome.error_message or ""
    if outcome.attempt:
        _identify(result, outcome.job_id, outcome.attempt)
    return _seal(packet, trust)


def write_alert(code: str, message: str, *, trace_id: str, at: int, trust: Trust) -> bytes:
    """Return the packet of an alert."""
    packet = _envelope(trust, trace_id, at)
    packet.alert.level = "WARN"
    packet.alert.message = message
    packet.alert.component = trust.sender_id
    packet.alert.code = code
    return _seal(packet, trust)


def _envelope(trust: Trust, trace_id: str, at: int) -> Any:
    """Return a packet without a payload.

    Its `identity` is never set: workers of older versions would take the signature for wrong.
    """
    packet = buspacket_pb2.BusPacket(
        trace_id=trace_id, sender_id=trust.sender_id, protocol_version=VERSION
    )
    packet.created_at.FromMicroseconds(at)
    return packet


def _seal(packet: Any, trust: Trust) -> bytes:
    sealed = finalize_packet(packet, trust.private_key)
    return bytes(sealed.SerializeToString(deterministic=True))
