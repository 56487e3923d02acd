"""What a worker and a handler's process say to each other: messages in frames on a socket.

A frame is four bytes of length and one message. What is not a message means that the other side is
no longer in its senses: there is no way back into step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from holdfast.durable.messages import Reply, Request
from holdfast.errors import ErrorReport
from holdfast.lifecycle.payload import BODY_LIMIT

# The largest message is a body, or a report of an error, with a little around it.
FRAME_LIMIT = BODY_LIMIT + 256 * 1024
TO_CHILD_LIMIT = 1024**3
"""A worker says more than a body where it tells all that a job remembers, and it is in its senses:
what a process says is bounded far below that."""
_LENGTH_SIZE = 4


class Garbled(Exception):
    """What came is not a message."""


class AppReference(Struct, frozen=True, kw_only=True):
    """Where a handler's process finds the app: an importable module, or the file of a script."""

    module: str | None = None
    path: str | None = None
    attribute: str

    def __str__(self) -> str:
        """Write it as it was given."""
        return f"{self.module or self.path}:{self.attribute}"


class Load(Struct, frozen=True, tag=True, kw_only=True):
    """Find the app, seeing modules as the worker sees them."""

    app: AppReference
    search_path: list[str]
    arguments: list[str]
    log_levels: dict[str, int]


class Run(Struct, frozen=True, tag=True, kw_only=True):
    """Run one handler; `facts` restore its context."""

    task: str
    facts: bytes
    body: bytes | None
    traceparent: str | None = None


class Cancel(Struct, frozen=True, tag=True):
    """Ask the handler to end."""

    reason: str


class Ready(Struct, frozen=True, tag=True):
    """The app is loaded, and the process has this size."""

    memory_bytes: int


class Unusable(Struct, frozen=True, tag=True):
    """The app cannot be loaded."""

    report: ErrorReport


class Started(Struct, frozen=True, tag=True):
    """The handler is about to be called: a process that died before this never began."""


class Progress(Struct, frozen=True, tag=True):
    """How far the job is."""

    body: bytes


class Heartbeat(Struct, frozen=True, tag=True):
    """Renew the lease in the handler's name."""


class LogLine(Struct, frozen=True, tag=True):
    """A line for the job's log."""

    level: int
    line: str


class Asking(Struct, frozen=True, tag=True):
    """Recall or remember something for the handler."""

    number: int
    request: Request


class Answer(Struct, frozen=True, tag=True):
    """What came of a request."""

    number: int
    reply: Reply


class LogRecord(Struct, frozen=True, tag=True, kw_only=True):
    """One record of the handler's logging, put into words."""

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


class Condition(Struct, frozen=True, kw_only=True):
    """How a process is after a job: how large, and whether something of the handler goes on.

    `left_behind` is only looked for where the handler failed or was asked to end.
    """

    memory_bytes: int
    left_behind: bool


class Returned(Struct, frozen=True, tag=True, kw_only=True):
    """The handler's result, packed."""

    body: bytes
    condition: Condition


class Raised(Struct, frozen=True, tag=True, kw_only=True):
    """What the handler raised; `kind` names the nearest class that both sides know."""

    report: ErrorReport
    condition: Condition
    kind: str | None = None
    retry_in: float | None = None
    job_id: str | None = None


ToChild: TypeAlias = Load | Run | Cancel | Answer
Outcome: TypeAlias = Returned | Raised
ToWorker: TypeAlias = (
    Ready | Unusable | Started | Progress | Heartbeat | LogLine | Asking | LogRecord | Outcome
)

M = TypeVar("M")
_encoder = msgspec.msgpack.Encoder()


def frame(message: ToChild | ToWorker, *, limit: int = FRAME_LIMIT) -> bytes:
    """Write a message as it goes over the socket."""
    text = _encoder.encode(message)
    if len(text) > limit:
        raise Garbled(f"a message of {len(text):,} bytes; the limit is {limit:,}")
    return len(text).to_bytes(_LENGTH_SIZE, "big") + text


class Frames(Generic[M]):
    """Puts what is read from a socket together into messages again."""

    def __init__(self, messages: Any, *, limit: int = FRAME_LIMIT) -> None:
        """Expect messages of these types, none larger than the limit."""
        self._limit = limit
        self._decoder: msgspec.msgpack.Decoder[M] = msgspec.msgpack.Decoder(messages)
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[M]:
        """Take what was read; yield each message that it completes."""
        self._buffer += data
        while (text := self._cut()) is not None:
            try:
                yield self._decoder.decode(text)
            except msgspec.MsgspecError as error:
                raise Garbled(f"{len(text):,} bytes that are no message: {error}") from error

    def _cut(self) -> bytes | None:
        if len(self._buffer) < _LENGTH_SIZE:
            return None
        end = _LENGTH_SIZE + int.from_bytes(self._buffer[:_LENGTH_SIZE], "big")
        if end > _LENGTH_SIZE + self._limit:
            raise Garbled(f"a message of {end:,} bytes is announced; the limit is {self._limit:,}")
        if len(self._buffer) < end:
            return None
        text = bytes(self._buffer[_LENGTH_SIZE:end])
        del self._buffer[:end]
        return text
