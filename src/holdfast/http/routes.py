"""The routes, made from the lists of operations: read a request, carry it out, write its result."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import asdict, fields, replace
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.errors import ValidationError
from holdfast.http.json_body import answer
from holdfast.http.middleware import path_name
from holdfast.http.query_string import read_query
from holdfast.http.request import HttpCall, admit
from holdfast.http.streamed_body import announced_digest, announced_length
from holdfast.lifecycle.record import Record
from holdfast.operations import requests as q
from holdfast.operations.http_format import layout_of, whole_body_type
from holdfast.operations.request import Request
from holdfast.operations.views import Rendered
from holdfast.ports.models import Submitted
from holdfast.webhooks.registry import MadeWebhook

Kind: TypeAlias = type[Request[Any]]
Answer: TypeAlias = "Callable[[HttpCall, RequestReader], Awaitable[Response]]"
"""Answers requests of one kind, which the reader reads."""

_HEADERS: dict[str, Callable[[HttpCall], Any]] = {
    "Idempotency-Key": lambda call: call.idempotency_key,
    "If-Match": lambda call: call.expected_rev,
    "last-event-id": lambda call: call.last_event_id,
    "Content-Length": lambda call: announced_length(call.request),
    "Content-Digest": lambda call: announced_digest(call.request),
}


class Endpoint:
    """One route: a method and a path, and the kinds of request that go there.

    A request has the first kind whose required query fields are all given.
    """

    def __init__(
        self, kinds: Iterable[Kind], answers: Mapping[Kind, Answer], *, method: str | None = None
    ) -> None:
        """Serve kinds that share a route, each by `answers` or else by `answer_request`.

        `method` is another than their own: HEAD, for what only describes the answer.
        """
        self.kinds = tuple(kinds)
        self.method, self.path = method or self.kinds[0].method, self.kinds[0].path or ""
        self.label = self.path
        self._readers = sorted(
            (RequestReader(kind, answers.get(kind, answer_request)) for kind in self.kinds),
            key=lambda reader: len(reader.required),
            reverse=True,
        )
        self.streams = any(layout_of(kind).stream is not None for kind in self.kinds)
        """Whether bodies are read piece by piece, with limits of their own."""
        self.query = frozenset(name for reader in self._readers for name in reader.query)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._answer(HttpRequest(scope, receive, send))
        await response(scope, receive, send)

    async def _answer(self, request: HttpRequest) -> Response:
        demanded = self.kinds[0].scope
        assert demanded is not None
        call = await admit(request, demanded)
        self._check_query(request)
        call.server.requests.take(call.caller, call.at_end)
        reader = self._readers[0]
        if len(self._readers) > 1:
            given = request.query_params.keys()
            fitting = [one for one in self._readers if one.required <= given]
            for one in fitting:
                # A parameter that the first of them does not take must be valid all the same.
                one.read_query(request)
            reader = fitting[0]
        return await reader.answer(call, reader)

    def _check_query(self, request: HttpRequest) -> None:
        """Refuse a query parameter that the route does not have.

        A misspelt filter would otherwise return everything, and a bulk command act on it.
        """
        for name in request.query_params if request.scope.get("query_string") else ():
            if name not in self.query:
                known = ", ".join(sorted(self.query)) or "none"
                raise ValidationError(
                    f"unknown query parameter {name!r}; {self.method} {self.path} takes: {known}",
                    field=name,
                )


class OpenEndpoint:
    """A route that needs no token."""

    streams = False

    def __init__(
        self,
        path: str,
        answer: Callable[[HttpRequest], Awaitable[Response]],
        kinds: tuple[Kind, ...] = (),
        *,
        method: str = "GET",
        label: str | None = None,
    ) -> None:
        """Take a path; `kinds` describes it, unless it is a page. Metrics count it by `label`."""
        self.kinds = kinds
        self.method, self.path, self.label = method, path, label or path
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._answer(HttpRequest(scope, receive, send))
        await response(scope, receive, send)


class RequestReader:
    """Reads requests of one kind."""

    def __init__(self, kind: Kind, answer: Answer) -> None:
        self.answer = answer
        self._kind = kind
        self._layout = layout = layout_of(kind)
        self.query: tuple[str, ...] = layout.query.__struct_fields__ if layout.query else ()
        self.required = _required(layout.query) if layout.query else frozenset()
        self._whole = whole_body_type(kind)

    async def read(self, call: HttpCall) -> Any:
        """Read a request from its path, query, body and headers."""
        layout = self._layout
        given: dict[str, Any] = {}
        if layout.whole_body is not None:
            given[layout.whole_body] = await call.body(self._whole)
        elif layout.body is not None:
            given |= asdict(await call.body(layout.body))
        else:
            given |= self.read_query(call.request)
        for name in layout.path:
            given[name] = path_name(call.request, name)
        for name, header in layout.headers.items():
            given[name] = _HEADERS[header](call)
        if layout.stream is not None:
            given[layout.stream] = call.stream(layout.stream_media)
        return self._kind(**given)

    def read_query(self, request: HttpRequest) -> dict[str, Any]:
        """Read the fields that are query parameters."""
        if self._layout.query is None or not self.query:
            return {}
        return asdict(read_query(request.query_params, self._layout.query))


def _required(query: type[Struct]) -> frozenset[str]:
    return frozenset(one.name for one in fields(query) if one.required)


async def answer_request(call: HttpCall, reader: RequestReader) -> Response:
    """Carry out a request and answer with its result; a wait ends with the server or its client."""
    request = await reader.read(call)
    if getattr(request, "wait", 0):
        result = await call.unless_over(call.do(request))
        if result is None:
            result = await call.do(replace(request, wait=0.0))
    else:
        result = await call.do(request)
    if isinstance(result, Submitted):
        call.server.count_submit(result)
    status, headers = _choose_status(type(request), result)
    return answer(result, status, **headers)


def _choose_status(kind: Kind, result: Any) -> tuple[int, dict[str, str]]:
    """Return the status and the headers that go with a result."""
    match result:
        case Submitted(job=job, created=created):
            headers = {"location": f"/v1/jobs/{job.id}", "etag": f'"{job.rev}"'}
            return 201 if created else 200, headers
        case Record():
            # A result that has not come yet: the job instead.
            return 202 if kind is q.GetResult else kind.status, {"etag": f'"{result.rev}"'}
        case Rendered(rev=int() as rev):
            return kind.status, {"etag": f'"{rev}"'}
        case MadeWebhook(created=True):
            return 201, {}
        case _:
            return kind.status, {}


AnyEndpoint: TypeAlias = Endpoint | OpenEndpoint


def make_endpoints(kinds: Iterable[Kind], answers: Mapping[Kind, Answer]) -> list[Endpoint]:
    """Make an endpoint for each method and path of these requests, in their order."""
    together: dict[tuple[str, str], list[Kind]] = {}
    for kind in kinds:
        if kind.path is not None:
            together.setdefault((kind.method, kind.path), []).append(kind)
    return [Endpoint(group, answers) for group in together.values()]
