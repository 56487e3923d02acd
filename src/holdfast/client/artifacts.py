"""A file of a job's artifacts behind a server."""

from __future__ import annotations

from collections.abc import AsyncIterator

from holdfast.client.transport import FilePart, Transport
from holdfast.errors import RangeNotSatisfiable
from holdfast.operations.http_format import write_request
from holdfast.operations.requests import GetArtifact
from holdfast.queries.artifacts import PieceCheck


class RemoteArtifact:
    """Reads a file over HTTP. Implements `ReadableArtifact`; nothing is sent before it is read."""

    def __init__(self, transport: Transport, request: GetArtifact) -> None:
        """Read the file that a request names."""
        self._transport = transport
        self._request = request
        self._path = write_request(request).path

    async def read(self, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """Read the bytes from `start` to before `end`; an error if they are not those collected."""
        if end is not None and end <= start:
            return
        part, check = FilePart(start, end), PieceCheck(self._request.name, str(self._request.job))
        try:
            async for piece in self._transport.read_file(self._path, part):
                if ready := check.add(piece):
                    yield ready
        except RangeNotSatisfiable:
            # It starts beyond the end of the file.
            return
        stop = part.end or 0
        is_whole = (start, stop) == (0, part.size)
        if last := check.finish(stop - start, part.digest if is_whole else None):
            yield last
