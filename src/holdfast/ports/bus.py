"""The port to a bus: a place where clients offer jobs and workers report on them by messages.

A bus carries bytes; `buses.cap` reads and writes them. What is reported of jobs is in the words
below, which know nothing of the wire.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

from holdfast.lifecycle.states import Priority


class BusChannel(StrEnum):
    """What a message is for, apart from the topics that jobs are sent to."""

    SUBMIT = "submit"
    RESULT = "result"
    PROGRESS = "progress"
    CANCEL = "cancel"
    HEARTBEAT = "heartbeat"
    HANDSHAKE = "handshake"
    DEAD_LETTER = "dlq"
    ALERT = "alert"


class WorkerStatusWord(StrEnum):
    """What a worker may claim of a job, and what it may not (A10)."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    FAILED_FOR_GOOD = "failed_for_good"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    FORBIDDEN = "forbidden"
    """A status that is not a worker's to report."""


class JobOffer(Struct, frozen=True, kw_only=True):
    """A client asks for a job."""

    sender: str
    trace_id: str
    job_id: str
    topic: str
    priority: Priority
    tenant: str | None
    context_ptr: str | None
    adapter_id: str | None
    env: Mapping[str, str]
    labels: Mapping[str, str]
    needs: frozenset[str]
    idempotency_key: str | None
    deadline_ms: int | None
    parent_job_id: str | None
    workflow_id: str | None
    step_index: int | None
    rest: Mapping[str, Any]
    """The fields of the request that have no column; they are carried to the worker."""


class WorkerResult(Struct, frozen=True, kw_only=True):
    """A worker reports what became of a job (A9)."""

    sender: str
    job_id: str
    status: WorkerStatusWord
    worker: str
    attempt: int | None
    """The attempt that it was sent for, where the wire carries it (A19)."""
    result_ptr: str | None = None
    execution_ms: int | None = None
    error_code: str | None = None
    error_message: str | None = None
    artifact_ptrs: tuple[str, ...] = ()


class WorkerProgress(Struct, frozen=True, kw_only=True):
    """A worker reports how far a job is."""

    sender: str
    job_id: str
    worker: str
    attempt: int | None
    status: WorkerStatusWord | None
    data: Mapping[str, Any]


class CancelOrder(Struct, frozen=True, kw_only=True):
    """Someone on the bus asks for the end of a job."""

    sender: str
    job_id: str
    reason: str | None
    requested_by: str


class WorkerPresence(Struct, frozen=True, kw_only=True):
    """A worker lives, and may name topics and capabilities that it has."""

    sender: str
    topics: tuple[str, ...]
    capabilities: frozenset[str] | None
    """None: the message names none, and may leave some out."""
    concurrency: int


BusWord: TypeAlias = JobOffer | WorkerResult | WorkerProgress | CancelOrder | WorkerPresence


class Delivery(StrEnum):
    """What is known of a message that was sent."""

    SENT = "sent"
    NO_LISTENER = "no_listener"
    """The server reports that nobody has subscribed."""
    NOT_SENT = "not_sent"
    """It certainly did not leave."""
    UNKNOWN = "unknown"
    """The connection was lost meanwhile: it may or may not have left."""


class BusMessage(Struct, frozen=True, kw_only=True):
    """A message that came in."""

    data: bytes
    received_at: int | None = None
    """When the bus took it, in microseconds, if the bus keeps messages."""
    redelivered: bool = False
    handle: Any = None
    """What `Inbox.done` needs."""


class Outgoing(Struct, frozen=True, kw_only=True):
    """A message that is to be sent."""

    subject: str
    data: bytes


class Inbox(Protocol):
    """What comes in on one subject."""

    async def open(self) -> None:
        """Start to receive."""

    async def take(self, limit: int, *, wait_seconds: float) -> list[BusMessage]:
        """Return messages as soon as there are some, at most `limit`; none after the wait."""

    async def done(self, messages: Sequence[BusMessage]) -> None:
        """Acknowledge messages, so that a bus that keeps them does not deliver them again."""


class Bus(Protocol):
    """A connection to a bus that is made again whenever it is lost."""

    @property
    def connected(self) -> bool:
        """Whether the connection is there now."""

    @property
    def dropped(self) -> int:
        """How many messages were dropped because they came faster than they were taken."""

    async def open(self) -> None:
        """Connect; wait for as long as that takes."""

    async def close(self) -> None:
        """Disconnect."""

    def inbox(self, channel: BusChannel, subject: str, *, shared: bool, kept: bool) -> Inbox:
        """Make an inbox of a subject.

        `shared`: each message goes to one of all bridges. `kept`: it waits for one, if it can.
        """

    async def send(self, messages: Sequence[Outgoing]) -> list[Delivery]:
        """Send messages, and return what is known of each: whether there is a listener."""
