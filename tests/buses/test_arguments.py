"""Arguments of a job by topic that leads to a bus: what is accepted arrives, nothing is lost."""

from __future__ import annotations

import base64
from typing import Any, get_type_hints

import msgspec
import pytest
from cap.pb.cordum.agent.v1 import buspacket_pb2, job_pb2
from google.protobuf.descriptor import Descriptor
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError

from holdfast.buses.cap import Dispatch, write_dispatch
from holdfast.buses.trust import Trust
from holdfast.errors import BadData
from holdfast.flow.bus_arguments import (
    OPTIONS,
    Budget,
    BusArguments,
    Compensation,
    ContextHints,
    JobMetadata,
    ResourceRef,
    check_bus_arguments,
)
from holdfast.lifecycle.states import Priority

OURS = {"topic", "identity", "dispatch"}
"""Fields of a request that are the bridge's to set."""
MESSAGES: tuple[Any, ...] = (Budget, Compensation, ContextHints, JobMetadata, ResourceRef)
INSTANT = "2030-01-31T12:00:00.5+01:00"


def _sent(rest: Any, **more: Any) -> Any:
    """The request that a worker is sent."""
    named: dict[str, Any] = {"job_id": "j", "topic": "job.once", "tenant": "default"}
    known: dict[str, Any] = {"attempt": 1, "trace_id": "t", "at": 1, "priority": Priority.BATCH}
    none = dict.fromkeys(("context_ptr", "adapter_id", "workflow_id", "step_index"))
    given = named | known | none | {"env": {}, "labels": {}, "rest": rest} | more
    packet = buspacket_pb2.BusPacket()
    packet.ParseFromString(write_dispatch(Dispatch(**given), Trust("holdfast-main")))
    return packet.job_request


def _check(args: Any) -> None:
    check_bus_arguments(msgspec.json.encode(args), "default")


def _full(kind: Any, message: Descriptor) -> dict[str, Any]:
    """A value for each field of a class that protobuf has, too."""
    made: dict[str, Any] = {}
    for name in kind.__struct_fields__:
        field = message.fields_by_name[name]
        inner = field.message_type
        if inner is not None and inner.GetOptions().map_entry:
            made[name] = {"k": "v"}
        elif inner is not None and inner.full_name == "google.protobuf.Timestamp":
            made[name] = INSTANT
        elif inner is not None:
            [kind_of] = [one for one in MESSAGES if one.__name__ == inner.name]
            made[name] = _full(kind_of, inner)
        elif field.enum_type is not None:
            made[name] = field.enum_type.values[-1].name
        elif name == "sha256":
            made[name] = base64.b64encode(b"\xff\xfe" * 16).decode()
        else:
            text = field.cpp_type == field.CPPTYPE_STRING
            flag = field.cpp_type == field.CPPTYPE_BOOL
            value: Any = "x" if text else True if flag else 1
            value = "default" if name == "tenant_id" else value
            made[name] = [value] if field.is_repeated else value
    return made


def _message(kind: Any) -> Descriptor:
    """The message of the SDK that a class stands for."""
    request, undoing = job_pb2.JobRequest.DESCRIPTOR, job_pb2.Compensation.DESCRIPTOR
    found = [field.message_type for field in (*request.fields, *undoing.fields)]
    return next(one for one in found if one is not None and one.name == kind.__name__)


def test_the_classes_have_the_fields_of_the_sdk_s_messages() -> None:
    names = {field.name for field in job_pb2.JobRequest.DESCRIPTOR.fields}
    assert set(BusArguments.__struct_fields__) == names - OPTIONS - OURS
    for kind in MESSAGES:
        message = _message(kind)
        ours = OURS - {"topic"} if message.name == "Compensation" else set()
        fields = {field.name for field in message.fields}
        assert set(kind.__struct_fields__) == fields - ours, message.name
    for kind, field in (
        (JobMetadata, "actor_type"),
        (Compensation, "priority"),
    ):
        enum = _message(kind).fields_by_name[field].enum_type
        assert enum is not None
        assert set(get_type_hints(kind)[field].__args__) == {value.name for value in enum.values}


def test_what_is_accepted_reaches_the_worker() -> None:
    args = _full(BusArguments, job_pb2.JobRequest.DESCRIPTOR)
    _check(args)
    wanted = ParseDict(args, job_pb2.JobRequest())
    request = _sent(args)
    for name in args:
        assert getattr(request, name) == getattr(wanted, name), name
    # As protobuf writes it, numbers of 64 bits are text.
    _check(MessageToDict(wanted, preserving_proto_field_name=True))


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({"text": "hello"}, "no argument 'text'.*memory_id.*context_ptr"),
        ({"env": {"k": "v"}}, "'env' is an option"),
        ({"labels": {}}, "'labels' is an option"),
        ({"dispatch": {"attempt": 3}}, "no argument 'dispatch'"),
        ({"memoryId": "m"}, "no argument 'memoryId'"),
        ({"memory_id": "m", "principal_id": 7}, "principal_id"),
        ({"memory_id": None}, "memory_id"),
        ({"budget": {"deadline_ms": -1}}, "deadline_ms"),
        ({"budget": {"max_total_tokens": 10**11}}, "max_total_tokens"),
        ({"budget": {"deadline": 1}}, "deadline"),
        ({"context_hints": {"max_input_tokens": 2**31}}, "max_input_tokens"),
        ({"meta": {"actor_type": "ROBOT"}}, "actor_type"),
        ({"meta": {"requires": ["x"] * 1001}}, "requires"),
        ({"context_ref": {"sha256": "?"}}, "sha256"),
        ({"context_ref": {"size_bytes": "-1"}}, "size_bytes"),
        ({"context_ref": {"expires_at": "tomorrow"}}, "expires_at"),
        ({"context_ref": {"expires_at": "2030-02-31T00:00:00Z"}}, "day"),
        ({"context_ref": {"expires_at": "2030-01-31 00:00:00Z"}}, "expires_at"),
        ({"compensation": {"identity": {"principal_id": "root"}}}, "identity"),
        ({"tenant_id": "another"}, "tenant 'default'"),
        ({"meta": {"tenant_id": "another"}}, "tenant 'default'"),
    ],
)
def test_what_no_packet_carries_is_refused(args: Any, text: str) -> None:
    with pytest.raises(BadData, match=text):
        _check(args)


def test_the_body_of_a_job_adds_nothing_to_what_has_a_column() -> None:
    body = {"env": {"a": "other", "SECRET": "x"}, "labels": {"b": "2"}, "stepIndex": 7}
    request = _sent(body, env={"a": "1"})
    assert (dict(request.env), dict(request.labels), request.step_index) == ({"a": "1"}, {}, 0)


def test_a_body_that_no_request_can_hold_makes_no_packet() -> None:
    with pytest.raises(ParseError, match="principal_id"):
        _sent({"memory_id": "m", "principal_id": 7})
