"""As much of PostgreSQL's wire protocol as a proxy needs to tell statements from each other."""

import re
import struct
from collections.abc import Iterator

# SSLRequest, GSSENCRequest, CancelRequest: they come before the startup message or instead of it.
_BEFORE_STARTUP = frozenset({80877102, 80877103, 80877104})
_READY_FOR_QUERY = re.compile(rb"Z\x00\x00\x00\x05[ITE]\Z")


class RequestStream:
    """Follows what one client sends and names the SQL that it executes.

    A prepared statement's text travels once, at Parse; it is looked up again at each Execute.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._started = False
        self._statements: dict[bytes, bytes] = {}
        self._portals: dict[bytes, bytes] = {}

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take the next bytes; the texts whose execution was asked for by the end of them."""
        self._buffer += chunk
        executed = (self._execute(kind, body) for kind, body in self._messages())
        return [text for text in executed if text is not None]

    def _messages(self) -> Iterator[tuple[bytes, bytes]]:
        while (message := self._next_message()) is not None:
            yield message

    def _next_message(self) -> tuple[bytes, bytes] | None:
        # Only the messages before the first answer lack the leading byte that says their kind.
        kind_length = 1 if self._started else 0
        if len(self._buffer) < kind_length + 4:
            return None
        (length,) = struct.unpack_from("!i", self._buffer, kind_length)
        if len(self._buffer) < kind_length + length:
            return None
        kind = bytes(self._buffer[:kind_length])
        body = bytes(self._buffer[kind_length + 4 : kind_length + length])
        del self._buffer[: kind_length + length]
        if not self._started:
            self._started = struct.unpack_from("!i", body)[0] not in _BEFORE_STARTUP
        return kind, body

    def _execute(self, kind: bytes, body: bytes) -> bytes | None:
        first, _, rest = body.partition(b"\0")
        second = rest.partition(b"\0")[0]
        match kind:
            case b"P":
                self._statements[first] = second
            case b"B":
                self._portals[first] = self._statements.get(second, b"")
            case b"E":
                return self._portals.get(first, b"")
            case b"Q":
                return first
            case _:
                pass
        return None


def ends_an_answer(received: bytes) -> bool:
    """Whether the server has said all to a request, its commit included.

    Only ReadyForQuery proves that: CommandComplete may be sent before the transaction commits.
    """
    return _READY_FOR_QUERY.search(received[-6:]) is not None
