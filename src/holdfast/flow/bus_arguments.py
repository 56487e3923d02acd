"""What the arguments of a job by topic may be where the topic leads to a bus: fields of CAP's
JobRequest, as far as a job has no option of its own for them.

The SDK is not needed here, for a submitter need not have it: `tests/buses/test_arguments.py`
compares these classes with its descriptors.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from holdfast.errors import ValidationError

_Number: TypeAlias = Annotated[int, Meta(ge=-(2**31), lt=2**31)]
# JSON of protobuf writes numbers of 64 bits as text.
_Size: TypeAlias = Annotated[int, Meta(ge=0)] | Annotated[str, Meta(pattern=r"\A[0-9]{1,18}\Z")]
_Tokens: TypeAlias = (
    Annotated[int, Meta(ge=0, le=10**10)] | Annotated[str, Meta(pattern=r"\A[0-9]{1,10}\Z")]
)
_Names: TypeAlias = Annotated[list[str], Meta(max_length=1000)]
_Priority: TypeAlias = Literal[
    "JOB_PRIORITY_UNSPECIFIED",
    "JOB_PRIORITY_INTERACTIVE",
    "JOB_PRIORITY_BATCH",
    "JOB_PRIORITY_CRITICAL",
]
_ActorType: TypeAlias = Literal["ACTOR_TYPE_UNSPECIFIED", "ACTOR_TYPE_HUMAN", "ACTOR_TYPE_SERVICE"]
_INSTANT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)", re.ASCII)


class _RequestPart(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class ContextHints(_RequestPart, frozen=True):
    """How a worker may shorten or extend the context."""

    max_input_tokens: _Number = 0
    allow_summarization: bool = False
    allow_retrieval: bool = False
    tags: list[str] = []


class Budget(_RequestPart, frozen=True):
    """What a worker may spend."""

    max_input_tokens: _Tokens = 0
    max_output_tokens: _Tokens = 0
    max_total_tokens: _Tokens = 0
    deadline_ms: _Size = 0


class JobMetadata(_RequestPart, frozen=True):
    """For whom and why."""

    tenant_id: str = ""
    actor_id: str = ""
    actor_type: _ActorType = "ACTOR_TYPE_UNSPECIFIED"
    idempotency_key: str = ""
    capability: str = ""
    risk_tags: _Names = []
    requires: _Names = []
    pack_id: str = ""
    labels: dict[str, str] = {}


class ResourceRef(_RequestPart, frozen=True):
    """Where the context is."""

    resolver_id: str = ""
    uri: str = ""
    sha256: bytes = b""
    media_type: str = ""
    size_bytes: _Size = 0
    expires_at: str | None = None
    purpose: str = ""

    def __post_init__(self) -> None:
        """Refuse an instant that protobuf could not read."""
        if self.expires_at is None:
            return
        if not _INSTANT.fullmatch(self.expires_at):
            raise ValueError("expires_at must be an instant such as 2030-01-31T12:00:00Z")
        if not 1970 < datetime.fromisoformat(self.expires_at).year < 9999:
            raise ValueError("expires_at must be between 1971 and 9998")


class Compensation(_RequestPart, frozen=True):
    """The job that would undo this one."""

    topic: str = ""
    context_ptr: str = ""
    priority: _Priority = "JOB_PRIORITY_UNSPECIFIED"
    adapter_id: str = ""
    env: dict[str, str] = {}
    memory_id: str = ""
    context_hints: ContextHints | None = None
    budget: Budget | None = None
    tenant_id: str = ""
    principal_id: str = ""
    labels: dict[str, str] = {}
    meta: JobMetadata | None = None
    context_ref: ResourceRef | None = None


class BusArguments(_RequestPart, frozen=True):
    """The arguments of a job that goes to a bus."""

    parent_job_id: str = ""
    memory_id: str = ""
    context_hints: ContextHints | None = None
    budget: Budget | None = None
    tenant_id: str = ""
    principal_id: str = ""
    meta: JobMetadata | None = None
    compensation: Compensation | None = None
    context_ref: ResourceRef | None = None


OPTIONS = {
    "job_id",
    "priority",
    "context_ptr",
    "adapter_id",
    "env",
    "workflow_id",
    "step_index",
    "labels",
}
"""Fields of a request that are options of any job, and may not be given a second time."""


def check_bus_arguments(body: bytes, tenant: str) -> None:
    """Raise ValidationError for what no packet can carry to a worker.

    It would be lost on the way, and nobody would learn of it.
    """
    named: dict[str, msgspec.Raw] = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    for name in named:
        if name in OPTIONS:
            raise ValidationError(f"{name!r} is an option of the job: give it beside args")
        if name not in BusArguments.__struct_fields__:
            raise ValidationError(
                f"a bus carries no argument {name!r}, only fields of a request: "
                f"{', '.join(BusArguments.__struct_fields__)}; "
                "put anything else where context_ptr points, or into env"
            )
    try:
        given = msgspec.json.decode(body, type=BusArguments)
    except msgspec.ValidationError as error:
        raise ValidationError(f"the bus cannot carry args: {error}") from None
    for found in (given.tenant_id, given.meta.tenant_id if given.meta else ""):
        if found not in ("", tenant):
            raise ValidationError(f"tenant_id is {found!r}, but the job is of tenant {tenant!r}")
