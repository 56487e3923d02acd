"""The messages between a worker and a handler's process, in frames on a socket.

A frame is four bytes of length and one message. Anything else means that the other side has lost
its place: it cannot find it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from holdfast.errors import ErrorReport
from holdfast.lifecycle.payload import BODY_LIMIT
from holdfast.tasks.durable.protocol import Reply, Request

# The largest message is a body, or a report of an error, with a little around it.
FRAME_LIMIT = BODY_LIMIT + 256 * 1024
TO_CHILD_LIMIT = 1024**3
"""A worker may send more than a body: all that a job recorded. It is trusted; what a process may
send is bounded far below that."""
_LENGTH_SIZE = 4


class InvalidMessage(Exception):
    """What was read is not a message."""


class AppReference(Struct, frozen=True, kw_only=True):
    """Where a handler's process finds the app: an importable module, or the file of a script."""

    module: str | None = None
    path: str | None = None
    attribute: str

    def __str__(self) -> str:
        return f"{self.module or self.path}:{self.attribute}"


class LoadApp(Struct, frozen=True, tag=True, kw_only=True):
    """Find the app, seeing modules as the worker sees them."""

    app: AppReference
    search_path: list[str]
    arguments: list[str]
    log_levels: dict[str, int]


class RunHandler(Struct, frozen=True, tag=True, kw_only=True):
    """Run one handler; `facts` restore its context."""

    task: str
    facts: bytes
    body: bytes | None
    traceparent: str | None = None


class StopHandler(Struct, frozen=True, tag=True):
    """Ask the handler to stop."""

    reason: str


class AppLoaded(Struct, frozen=True, tag=True):
    """The app is loaded, and the process has this size."""

    memory_bytes: int


class AppFailed(Struct, frozen=True, tag=True):
    """The app cannot be loaded."""

    report: ErrorReport


class HandlerStarted(Struct, frozen=True, tag=True):
    """The handler is about to be called: a process that died before this did not run it."""


class HandlerProgress(Struct, frozen=True, tag=True):
    """How far the job is."""

    body: bytes


class HandlerHeartbeat(Struct, frozen=True, tag=True):
    """Renew the lease in the handler's name."""


class JobLogLine(Struct, frozen=True, tag=True):
    """A line for the job's log."""

    level: int
    line: str


class DurableCall(Struct, frozen=True, tag=True):
    """A durable call of the handler."""

    number: int
    request: Request


class DurableReply(Struct, frozen=True, tag=True):
    """The reply to a durable call."""

    number: int
    reply: Reply


class LogRecord(Struct, frozen=True, tag=True, kw_only=True):
    """One record of the handler's logging, as text."""

    name: str
    level: int
    message: str
    created: float
    pathname: str
    line: int
    function: str
    thread: str
    process: int
    traceback: str | None
    fields: dict[str, str | int | float | bool | None]


class ProcessCondition(Struct, frozen=True, kw_only=True):
    """How large a process is after a job, and whether something of the handler still runs in it.

    `left_behind` is only looked for where the handler failed or was asked to stop.
    """

    memory_bytes: int
    left_behind: bool


class Returned(Struct, frozen=True, tag=True, kw_only=True):
    """The handler's result, as JSON."""

    body: bytes
    condition: ProcessCondition


class Raised(Struct, frozen=True, tag=True, kw_only=True):
    """The handler's error; `kind` names the nearest class that both sides know."""

    report: ErrorReport
    condition: ProcessCondition
    kind: str | None = None
    retry_in: float | None = None
    job_id: str | None = None


ToChild: TypeAlias = LoadApp | RunHandler | StopHandler | DurableReply
Outcome: TypeAlias = Returned | Raised
ToWorker: TypeAlias = (
    AppLoaded
    | AppFailed
    | HandlerStarted
    | HandlerProgress
    | HandlerHeartbeat
    | JobLogLine
    | DurableCall
    | LogRecord
    | Outcome
)

M = TypeVar("M")
_encoder = msgspec.msgpack.Encoder()


def frame(message: ToChild | ToWorker, *, limit: int = FRAME_LIMIT) -> bytes:
    """Return a message as it goes over the socket."""
    text = _encoder.encode(message)
    if len(text) > limit:
        raise InvalidMessage(f"a message of {len(text):,} bytes; the limit is {limit:,}")
    return len(text).to_bytes(_LENGTH_SIZE, "big") + text


class Frames(Generic[M]):
    """Puts what is read from a socket together into messages."""

    def __init__(self, messages: Any, *, limit: int = FRAME_LIMIT) -> None:
        """Expect messages of these types, none larger than the limit."""
        self._limit = limit
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(messages)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[M]:
        """Add what was read; yield each message that it completes."""
        self._buffer += data
        while (text := self._cut_message()) is not None:
            try:
                yield self._decoder.decode(text)
            except msgspec.MsgspecError as error:
                raise InvalidMessage(
                    f"{len(text):,} bytes that are not a message: {error}"
                ) from error

    def _cut_message(self) -> bytes | None:
        if len(self._buffer) < _LENGTH_SIZE:
            return None
        end = _LENGTH_SIZE + int.from_bytes(self._buffer[:_LENGTH_SIZE], "big")
        if end > _LENGTH_SIZE + self._limit:
            raise InvalidMessage(f"a message of {end:,} bytes; the limit is {self._limit:,}")
        if len(self._buffer) < end:
            return None
        text = bytes(self._buffer[_LENGTH_SIZE:end])
        del self._buffer[:end]
        return text
