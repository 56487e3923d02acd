"""The operations through a server: a request is written for HTTP, and its result read back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace

from holdfast.client.artifacts import RemoteArtifact
from holdfast.client.transport import (
    ServerReply,
    StreamedContent,
    Transport,
    make_headers,
    make_http,
)
from holdfast.errors import BadData, HoldfastError, ServerFailed
from holdfast.ids import mint_id, mint_request
from holdfast.lifecycle.record import Job
from holdfast.operations import requests as q
from holdfast.operations.http_format import WrittenRequest, write_request
from holdfast.operations.problems import error_of
from holdfast.operations.request import R, Request
from holdfast.operations.views import Each, Receipts
from holdfast.ports.models import Page, Submitted
from holdfast.queries.history import ReadEvent
from holdfast.webhooks.registry import MadeWebhook

PART_JOBS, PART_BYTES = 1000, 4 * 1024 * 1024
"""How much is submitted in one request; a single job may be larger."""
FOLLOW_SECONDS = 0.5
"""Between two reads for new events of a job."""

WORK_SECONDS: dict[type[Request[Any]], float] = {q.FinalizeUpload: 600.0, q.DeleteUpload: 60.0}
"""How long a server may be busy with a request: it reads gigabytes, or deletes many files."""


class RemoteOperations:
    """Carries out requests over HTTP. One that is repeated takes effect once."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    async def do(self, request: Request[R]) -> R:
        """Carry out a request, and return its result."""
        several = _SEVERAL.get(type(request))
        if several is not None:
            result: R = await several(self, request)
            return result
        return await self.exchange(request)

    async def exchange(self, request: Request[R]) -> R:
        """Send a request, and return the result that its answer shows."""
        return (await self.send(request)).result(type(request))

    async def send(self, request: Request[Any]) -> ServerReply:
        """Send a request, and return its answer."""
        written = write_request(request)
        return await self.transport.send(
            type(request).method,
            written.path,
            query=written.query,
            body=written.body,
            stream=_stream_of(written),
            key=_check_key(written.headers.get("Idempotency-Key")),
            expected_rev=written.headers.get("If-Match"),
            wait=getattr(request, "wait", 0.0),
            work=WORK_SECONDS.get(type(request), 0.0),
        )


def _stream_of(written: WrittenRequest) -> StreamedContent | None:
    if written.stream is None or written.media is None:
        return None
    return StreamedContent(
        data=written.stream,
        media=written.media,
        bytes=written.headers.get("Content-Length"),
        digest=written.headers.get("Content-Digest"),
    )


def _check_key(key: str | None) -> str | None:
    if key is not None and not (key.isascii() and key.isprintable()):
        raise BadData("over HTTP a request_id must be printable ASCII")
    return key


async def _submit_job(on: RemoteOperations, request: q.SubmitJob) -> Submitted:
    # The caller's id goes in the body, which takes any text. An earlier submit may have used it:
    # only a job with this submit's own key was made by it.
    job, key = request.job, mint_request()
    if job.request_id is None:
        job = replace(job, request_id=request.request_id)
    reply = await on.send(replace(request, job=job, request_id=key))
    return await _find_made(on, reply.result(q.SubmitJob), key, reply.repeated)


async def _submit_jobs(on: RemoteOperations, request: q.SubmitJobs) -> list[q.Answer]:
    """Submit in parts that a server accepts."""
    answers: list[q.Answer] = []
    key, jobs = request.request_id, request.jobs
    if key is not None:
        jobs = [
            job if job.request_id is not None else replace(job, request_id=f"{key}/{number}")
            for number, job in enumerate(jobs)
        ]
    for part in _split_jobs(jobs):
        try:
            answers += await _submit_part(on, part)
        except HoldfastError as error:
            # The parts before it are written, and their answers must not be lost.
            if not answers:
                raise
            answers += [error] * len(part)
    return answers


def _split_jobs(jobs: Sequence[q.Wanted]) -> Iterator[list[q.Wanted]]:
    part: list[q.Wanted] = []
    size = 0
    for job in jobs:
        length = _length(job)
        if part and (len(part) == PART_JOBS or size + length > PART_BYTES):
            yield part
            part, size = [], 0
        part.append(job)
        size += length
    if part:
        yield part


def _length(job: q.Wanted) -> int:
    """Return about how long a job is as JSON: what of it may be long."""
    if isinstance(job, q.WithArguments):
        return len(bytes(job.args))
    texts = (job.command, *(job.argv or ()), job.task, job.context)
    return sum(len(text) for text in texts if text is not None)


async def _submit_part(on: RemoteOperations, jobs: list[q.Wanted]) -> list[q.Answer]:
    key = mint_request()
    reply = await on.send(q.SubmitJobs(jobs=jobs, request_id=key))
    return [
        await _answer(on, each, f"{key}/{number}", reply.repeated)
        for number, each in enumerate(reply.read(Receipts).jobs)
    ]


async def _answer(on: RemoteOperations, each: Each, key: str, repeated: bool) -> q.Answer:
    if each.accepted is None:
        return ServerFailed("no answer") if each.problem is None else error_of(each.problem)
    return await _find_made(on, each.accepted.submitted(), key, repeated)


async def _find_made(
    on: RemoteOperations, submitted: Submitted, key: str, repeated: bool
) -> Submitted:
    """Return whether a submit made its job, also if the answer to the first request was lost."""
    if repeated and not submitted.created:
        [first] = (await on.exchange(q.GetHistory(job=submitted.job.id, limit=1))).events
        return Submitted(submitted.job, first.request_id == key)
    return submitted


async def _list_jobs(on: RemoteOperations, request: q.ListJobs) -> Page:
    """List jobs until the page is full: a server examines a bounded number per request."""
    jobs: list[Job] = []
    while True:
        page = await on.exchange(request)
        jobs += page.jobs
        if page.next is None or len(page.jobs) == request.limit:
            return Page(jobs, page.next)
        request = replace(request, before=page.next, limit=request.limit - len(page.jobs))


async def _await_events(on: RemoteOperations, request: q.AwaitEvents) -> list[ReadEvent]:
    """Read the history again and again until there is an event, or the wait is over."""
    until = time.monotonic() + request.wait_seconds
    while True:
        page = await on.exchange(q.GetHistory(job=request.job, after=request.after))
        left = until - time.monotonic()
        if page.events or left <= 0:
            return page.events
        await asyncio.sleep(min(FOLLOW_SECONDS, left))


async def _add_webhook(on: RemoteOperations, request: q.AddWebhook) -> MadeWebhook:
    """Name the webhook here: sent again because an answer was lost, it makes no second one."""
    wanted = request.webhook
    named = replace(wanted, id=wanted.id or mint_id().hex)
    made = await on.exchange(q.AddWebhook(webhook=named))
    if made.created or wanted.id is not None:
        return made
    # The answer that was lost had the secret, which is shown once: make another.
    await on.exchange(q.RemoveWebhook(webhook=made.about.id))
    return await on.exchange(q.AddWebhook(webhook=replace(wanted, id=mint_id().hex)))


async def _get_artifact(on: RemoteOperations, request: q.GetArtifact) -> RemoteArtifact:
    return RemoteArtifact(on.transport, request)


_SEVERAL: dict[type[Request[Any]], Callable[[RemoteOperations, Any], Awaitable[Any]]] = {
    q.SubmitJob: _submit_job,
    q.SubmitJobs: _submit_jobs,
    q.ListJobs: _list_jobs,
    q.AwaitEvents: _await_events,
    q.AddWebhook: _add_webhook,
    q.GetArtifact: _get_artifact,
}
"""Requests that take another number of exchanges than one."""


@asynccontextmanager
async def connected(
    url: str, *, token: str | None, tenant: str | None, patience_seconds: float
) -> AsyncIterator[RemoteOperations]:
    """Connect to a server; `tenant` is for a token that may act for all of them."""
    async with make_http(url, make_headers(token, tenant)) as http:
        yield RemoteOperations(Transport(http, patience_seconds=patience_seconds))
