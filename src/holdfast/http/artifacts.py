"""Answers with a file that a command left in /artifacts: all of it, or a range (RFC 9110)."""

from __future__ import annotations

import re
from typing import TypeAlias
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse

from holdfast.errors import RangeNotSatisfiable
from holdfast.http.problems import problem_response
from holdfast.http.request import HttpCall
from holdfast.http.routes import RequestReader
from holdfast.queries.artifacts import Artifact, StoredArtifact

MEDIA = "application/octet-stream"
"""Whatever the file is: nothing that a command wrote is shown by a browser as a page of ours."""
Range: TypeAlias = tuple[int, int]
"""The first byte, and the one after the last."""
_RANGE = re.compile(r"bytes\s*=\s*(?:(\d{1,18})\s*-\s*(\d{1,18})?|-\s*(\d{1,18}))\s*", re.ASCII)
_TAG = re.compile(r'(?:W/)?("[^"]*")')


async def answer_artifact(call: HttpCall, reader: RequestReader) -> Response:
    """Answer with a file or a range of it; a HEAD with what describes it."""
    opened = await call.do(await reader.read(call))
    assert isinstance(opened, StoredArtifact)
    file, given = opened.file, call.request.headers
    headers = _describe(file)
    if _names_tag(given.get("if-none-match"), file):
        return Response(status_code=304, headers=headers)
    is_head = call.request.method == "HEAD"
    # A HEAD describes the whole file: ranges are for GET alone.
    wanted = given.get("range") if not is_head and _is_same(given.get("if-range"), file) else None
    try:
        chosen = choose_range(wanted, file.bytes)
    except RangeNotSatisfiable as error:
        response = problem_response(error, call.request_id, call.request.method)
        response.headers["content-range"] = f"bytes */{file.bytes}"
        return response
    start, stop = chosen or (0, file.bytes)
    headers["content-length"] = str(stop - start)
    if chosen is not None:
        headers["content-range"] = f"bytes {start}-{stop - 1}/{file.bytes}"
    if is_head:
        return Response(headers=headers, media_type=MEDIA)
    status = 200 if chosen is None else 206
    return StreamingResponse(opened.read(start, stop), status, headers=headers, media_type=MEDIA)


def choose_range(header: str | None, size: int) -> Range | None:
    """Return the range that a request asks for; None for the whole file.

    So it is for several ranges, and for what is not a range of bytes (RFC 9110, 14.2).
    """
    found = None if header is None else _RANGE.fullmatch(header.strip())
    if found is None:
        return None
    first, last, suffix = found.groups()
    start = max(0, size - int(suffix)) if first is None else int(first)
    stop = size if last is None else min(int(last) + 1, size)
    if last is not None and int(last) < start:
        return None
    if start >= size:
        raise RangeNotSatisfiable(f"the file has {size:,} bytes", field="range")
    return start, stop


def _describe(file: Artifact) -> dict[str, str]:
    return {
        "etag": f'"{file.sha256}"',
        "accept-ranges": "bytes",
        # It never changes under its tag, and only its tenant may see it.
        "cache-control": "private, no-cache",
        "content-disposition": write_disposition(file.path.rpartition("/")[2]),
    }


def write_disposition(name: str) -> str:
    """Write that a file is to be saved, under which name (RFC 6266)."""
    simple = "".join(one if " " <= one <= "~" and one not in '"\\%' else "_" for one in name)
    return f"attachment; filename=\"{simple}\"; filename*=UTF-8''{quote(name, safe='')}"


def _names_tag(header: str | None, file: Artifact) -> bool:
    """Return whether `If-None-Match` names a file."""
    if header is None:
        return False
    return header.strip() == "*" or f'"{file.sha256}"' in _TAG.findall(header)


def _is_same(header: str | None, file: Artifact) -> bool:
    """Return whether `If-Range` allows a range: only for exactly this file; never by a date."""
    return header is None or header.strip() == f'"{file.sha256}"'
