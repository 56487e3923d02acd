"""The operations on a server's jobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote
from uuid import UUID

from msgspec import Raw
from msgspec.structs import replace

from holdfast.client.problems import error_of
from holdfast.client.requests import Reply, Requests
from holdfast.errors import BadData, HoldfastError, ResultTimeout, ServerFailed
from holdfast.flow.history import EventPage, ReadEvent
from holdfast.flow.intervene import OPERATOR_HOLD
from holdfast.flow.letters import DeadLetter, LetterFilter, LetterPage
from holdfast.flow.lineage import Lineage
from holdfast.flow.outcomes import Outcome
from holdfast.flow.redrive import AS_IT_WAS, Settled, Wish
from holdfast.flow.why import Why
from holdfast.identity import mint_id, mint_request
from holdfast.lifecycle.job import Job, JobId
from holdfast.lifecycle.payload import check_body, check_text
from holdfast.lifecycle.states import State
from holdfast.lifecycle.times import SECOND
from holdfast.messages import (
    Cancelling,
    ClockView,
    Counted,
    Discarding,
    DiscardingAll,
    Each,
    Explanation,
    Holding,
    JobList,
    Log,
    Many,
    Pausing,
    ProgressView,
    Queues,
    Receipts,
    Redriving,
    RedrivingAll,
    Rescheduling,
    Resolving,
    Result,
    Signalling,
)
from holdfast.operations import BULK, Answer, Depth, Ending, Progress, Roll, Wanted, Which
from holdfast.options import due_time
from holdfast.ports import LogLine, Page, Query, QueueStatus, Submitted
from holdfast.spans import Span, span_seconds
from holdfast.views import JobView, instant
from holdfast.webhooks import MadeWebhook, WantedWebhook, WebhookList, WebhookView

POLL_SECONDS = 25.0
"""How long one request waits for a job's end: less than what proxies put up with."""
EARLY_SECONDS = 0.2
"""The rest after an answer that came before its time, as from a server that is being stopped."""
PART_JOBS, PART_BYTES = 1000, 4 * 1024 * 1024
"""How much is submitted in one request; a single job may be larger."""

FOLLOW_SECONDS = 0.5
"""Between two looks for new events of a job."""
HISTORY_PAGE = 1000
"""How many events of a job are asked for at once."""


class RemoteOperations:
    """Operations over HTTP. What a server did, it does not do again when it is asked again."""

    def __init__(self, requests: Requests) -> None:
        """Ask through these requests."""
        self._ask = requests.ask

    async def now(self) -> int:
        """Tell the store's clock."""
        return (await self._ask("GET", "/v1/clock")).read(ClockView).now

    async def submit(self, wanted: Sequence[Wanted]) -> list[Answer]:
        """Submit jobs together; each is answered for itself, in order."""
        answers: list[Answer] = []
        for part in _parts(wanted):
            try:
                answers += await self._submit(part)
            except HoldfastError as error:
                # What went before is there, and its answers must not be lost.
                if not answers:
                    raise
                answers += [error] * len(part)
        return answers

    async def _submit(self, wanted: list[Wanted]) -> list[Answer]:
        key = mint_request()
        reply = await self._ask("POST", "/v1/jobs/batch", body=Many(jobs=wanted), key=key)
        return [
            await self._answer(each, f"{key}/{number}", reply.repeated)
            for number, each in enumerate(reply.read(Receipts).jobs)
        ]

    async def _answer(self, each: Each, key: str, repeated: bool) -> Answer:
        if each.accepted is None:
            return ServerFailed("no answer") if each.problem is None else error_of(each.problem)
        job = each.accepted.job.record()
        created = each.accepted.created
        if repeated and not created:
            # The first time may have made it, and its answer was lost.
            [first] = (await self._event_page(job.id, 0, 1)).events
            created = first.request_id == key
        return Submitted(job, created)

    async def get(self, job: Which) -> Job:
        """Read a job."""
        return _record(await self._ask("GET", _job(job)))

    async def find(self, query: Query) -> Page:
        """List jobs, newest first."""
        jobs: list[Job] = []
        while True:
            found = (await self._ask("GET", "/v1/jobs", query=_listing(query))).read(JobList)
            jobs += [view.record() for view in found.jobs]
            following = None if found.next is None else JobId(UUID(found.next))
            # A server looks at so many jobs a request, and answers with less than was asked for.
            if following is None or len(found.jobs) == query.limit:
                return Page(jobs, following)
            query = replace(query, before=following, limit=query.limit - len(found.jobs))

    async def history(self, job: Which) -> list[ReadEvent]:
        """Read a job's whole history, each event complete in itself."""
        events: list[ReadEvent] = []
        after: int | None = 0
        while after is not None:
            page = await self._event_page(job, after, HISTORY_PAGE)
            events += page.events
            after = page.next
        return events

    async def events_after(
        self, job: Which, *, after: int = 0, wait_seconds: float = 0.0
    ) -> list[ReadEvent]:
        """Read some events of a job after a revision; if there are none, wait so long for one."""
        ends_at = time.monotonic() + wait_seconds
        while True:
            page = await self._event_page(job, after, HISTORY_PAGE)
            left = ends_at - time.monotonic()
            if page.events or left <= 0:
                return page.events
            await asyncio.sleep(min(FOLLOW_SECONDS, left))

    async def progress(self, job: Which) -> Progress | None:
        """Read how far a job is, by the last report of its handler; None if it made none."""
        return (await self._ask("GET", f"{_job(job)}/progress")).read(ProgressView).read()

    async def _event_page(self, job: Which, after: int, limit: int) -> EventPage:
        query = [("after", str(after)), ("limit", str(limit))]
        return (await self._ask("GET", f"{_job(job)}/history", query=query)).read(EventPage)

    async def logs(self, job: Which, *, after: int = 0, limit: int = 1000) -> list[LogLine]:
        """Read what a job's handler said by `ctx.log`, after a position."""
        query = [("after", str(after)), ("limit", str(limit))]
        log = (await self._ask("GET", f"{_job(job)}/logs", query=query)).read(Log)
        return [view.line(JobId(log.internal_id)) for view in log.lines]

    async def ended(self, job: Which, timeout: Span | None = None) -> Job:
        """Wait until a job has ended; ResultTimeout if that takes longer."""
        waiting = _Waiting(job, timeout)
        while True:
            reply = await self._poll(_job(job), waiting)
            record = _record(reply)
            if record.terminal:
                return record
            await waiting.goes_on(record)

    async def outcome(self, job: Which, timeout: Span | None = None) -> Ending:
        """Wait until a job has come to something, by its last try; ResultTimeout as `ended`."""
        waiting = _Waiting(job, timeout)
        while True:
            reply = await self._poll(f"{_job(job)}/result", waiting)
            if reply.status == 200:
                return _ending(reply.read(Result))
            await waiting.goes_on(_record(reply))

    async def _poll(self, path: str, waiting: _Waiting) -> Reply:
        seconds = waiting.begin()
        return await self._ask("GET", path, query=[("wait", f"{seconds:.3f}")], wait=seconds)

    async def cancel(
        self,
        job: Which,
        *,
        hard: bool = False,
        reason: str | None = None,
        request_id: str | None = None,
        expected_rev: int | None = None,
    ) -> Job:
        """Cancel a job: at once where nobody holds it, else by asking its owner."""
        body = Cancelling(hard=hard, reason=reason)
        path = f"{_job(job)}/cancel"
        return _record(
            await self._ask(
                "POST", path, body=body, key=_key(request_id), expected_rev=expected_rev
            )
        )

    async def signal(
        self,
        job: Which,
        name: str,
        body: bytes = b"null",
        *,
        request_id: str | None = None,
        expected_rev: int | None = None,
    ) -> Job:
        """Send a job a signal."""
        sent = Signalling(name=name, payload=Raw(check_body(body, f"the payload of {name!r}")))
        path = f"{_job(job)}/signal"
        return _record(
            await self._ask(
                "POST", path, body=sent, key=_key(request_id), expected_rev=expected_rev
            )
        )

    async def resolve(
        self,
        job: Which,
        step: str,
        *,
        happened: bool,
        result: Any = None,
        force: bool = False,
        request_id: str | None = None,
        expected_rev: int | None = None,
    ) -> Job:
        """Say whether a step had its effect that a job asks about."""
        body = Resolving(step=step, happened=happened, result=result, force=force)
        path = f"{_job(job)}/resolve"
        return _record(
            await self._ask(
                "POST", path, body=body, key=_key(request_id), expected_rev=expected_rev
            )
        )

    async def hold(
        self,
        job: Which,
        name: str = OPERATOR_HOLD,
        *,
        reason: str | None = None,
        request_id: str | None = None,
        expected_rev: int | None = None,
    ) -> Job:
        """Keep a job from being claimed until the hold of this name is lifted."""
        body = Holding(hold=name, reason=reason)
        path = f"{_job(job)}/hold"
        return _record(
            await self._ask(
                "POST", path, body=body, key=_key(request_id), expected_rev=expected_rev
            )
        )

    async def unhold(
        self,
        job: Which,
        name: str = OPERATOR_HOLD,
        *,
        reason: str | None = None,
        request_id: str | None = None,
        expected_rev: int | None = None,
    ) -> Job:
        """Lift the hold of this name; other holds of the job stay."""
        body = Holding(hold=name, reason=reason)
        path = f"{_job(job)}/unhold"
        return _record(
            await self._ask(
                "POST", path, body=body, key=_key(request_id), expected_rev=expected_rev
            )
        )

    async def reschedule(
        self,
        job: Which,
        *,
        delay: Span | None = None,
        run_at: datetime | None = None,
        reason: str | None = None,
        request_id: str | None = None,
        expected_rev: int | None = None,
    ) -> Job:
        """Make a job that has no owner due after `delay`, or at `run_at`."""
        due_time(delay, run_at)
        spoken = None if delay is None else span_seconds(delay, "delay")
        body = Rescheduling(delay=spoken, run_at=run_at, reason=reason)
        path = f"{_job(job)}/reschedule"
        return _record(
            await self._ask(
                "POST", path, body=body, key=_key(request_id), expected_rev=expected_rev
            )
        )

    async def why(self, job: Which) -> Why:
        """Tell why a job stands where it stands."""
        return (await self._ask("GET", f"{_job(job)}/why")).read(Explanation).why

    async def lineage(self, job: Which) -> Lineage:
        """Read the tree that a job stands in."""
        return (await self._ask("GET", f"{_job(job)}/lineage")).read(Lineage)

    async def letters(
        self, letters: LetterFilter, *, before: JobId | None = None, limit: int = 50
    ) -> LetterPage:
        """List dead letters, newest job first."""
        query = [*_lettered(letters), ("limit", str(limit))]
        if before is not None:
            query.append(("before", str(before)))
        return (await self._ask("GET", "/v1/dead-letters", query=query)).read(LetterPage)

    async def letter(self, job: Which) -> DeadLetter:
        """Read one dead letter."""
        return (await self._ask("GET", _letter(job))).read(DeadLetter)

    async def redrive(
        self,
        job: Which,
        *,
        wish: Wish = AS_IT_WAS,
        again: bool = False,
        reason: str | None = None,
        request_id: str | None = None,
        expected_rev: int | None = None,
    ) -> Job:
        """Make a new job of a dead letter, once, and return it."""
        body = Redriving(
            queue=wish.queue,
            retries=wish.retries,
            delay_seconds=wish.delay / SECOND,
            from_start=wish.from_start,
            again=again,
            reason=reason,
        )
        path = f"{_letter(job)}/redrive"
        return _record(
            await self._ask(
                "POST", path, body=body, key=_key(request_id), expected_rev=expected_rev
            )
        )

    async def discard(
        self,
        job: Which,
        *,
        reason: str | None = None,
        request_id: str | None = None,
        expected_rev: int | None = None,
    ) -> Job:
        """Put an open letter away."""
        body = Discarding(reason=reason)
        path = f"{_letter(job)}/discard"
        return _record(
            await self._ask(
                "POST", path, body=body, key=_key(request_id), expected_rev=expected_rev
            )
        )

    async def count_letters(self, letters: LetterFilter) -> int:
        """Count dead letters."""
        query = list(_lettered(letters))
        return (await self._ask("GET", "/v1/dead-letter-count", query=query)).read(Counted).letters

    async def redrive_all(
        self,
        letters: LetterFilter,
        *,
        wish: Wish = AS_IT_WAS,
        reason: str | None = None,
        before: JobId | None = None,
        limit: int = BULK,
    ) -> Settled:
        """Redrive open letters, newest job first; `next` of what comes back goes on."""
        body = RedrivingAll(
            **_which(letters, before, limit),
            to_queue=wish.queue,
            retries=wish.retries,
            delay_seconds=wish.delay / SECOND,
            from_start=wish.from_start,
            reason=reason,
        )
        return (await self._ask("POST", "/v1/dead-letters/redrive", body=body)).read(Settled)

    async def discard_all(
        self,
        letters: LetterFilter,
        *,
        reason: str | None = None,
        before: JobId | None = None,
        limit: int = BULK,
    ) -> Settled:
        """Put open letters away, newest job first; `next` of what comes back goes on."""
        body = DiscardingAll(**_which(letters, before, limit), reason=reason)
        return (await self._ask("POST", "/v1/dead-letters/discard", body=body)).read(Settled)

    async def queues(self) -> list[Depth]:
        """List queues by name: their depth, and whether they are paused."""
        return (await self._ask("GET", "/v1/queues")).read(Queues).queues

    async def pause(
        self, queue: str, *, reason: str | None = None, request_id: str | None = None
    ) -> QueueStatus:
        """Let no job of a queue be claimed; only for whoever acts for all tenants."""
        return await self._set_queue(queue, "pause", reason, request_id)

    async def resume(
        self, queue: str, *, reason: str | None = None, request_id: str | None = None
    ) -> QueueStatus:
        """Let a queue's jobs be claimed again; only for whoever acts for all tenants."""
        return await self._set_queue(queue, "resume", reason, request_id)

    async def _set_queue(
        self, queue: str, verb: str, reason: str | None, request_id: str | None
    ) -> QueueStatus:
        path = f"/v1/queues/{_segment(queue, 'queue')}/{verb}"
        reply = await self._ask("POST", path, body=Pausing(reason=reason), key=_key(request_id))
        return reply.read(QueueStatus)

    async def add_webhook(self, wanted: WantedWebhook) -> MadeWebhook:
        """Make a webhook: from now on it is told of the ends of jobs."""
        # Named here: asked again because an answer was lost, it makes no second one.
        named = replace(wanted, id=wanted.id or mint_id().hex)
        made = (await self._ask("POST", "/v1/webhooks", body=named)).read(MadeWebhook)
        if made.created or wanted.id is not None:
            return made
        # The answer that was lost had the secret, which is shown once: make another.
        await self.remove_webhook(made.about.id)
        again = replace(wanted, id=mint_id().hex)
        return (await self._ask("POST", "/v1/webhooks", body=again)).read(MadeWebhook)

    async def webhooks(self, *, before: str | None = None, limit: int = 100) -> WebhookList:
        """List webhooks, newest first."""
        query = [("limit", str(limit)), *([] if before is None else [("before", before)])]
        return (await self._ask("GET", "/v1/webhooks", query=query)).read(WebhookList)

    async def remove_webhook(self, id: str) -> WebhookView:
        """End a webhook; what was not delivered yet is not."""
        path = f"/v1/webhooks/{_segment(id, 'the id')}"
        return (await self._ask("DELETE", path)).read(WebhookView)

    async def workers(self, *, seen_since: int | None = None, limit: int = 1000) -> Roll:
        """List workers, live, silent and ended ones."""
        query = [("limit", str(limit))]
        if seen_since is not None:
            query.append(("seen_since", instant(seen_since).isoformat()))
        return (await self._ask("GET", "/v1/workers", query=query)).read(Roll)


class _Waiting:
    """Somebody who waits for a job's end, in requests of bounded length."""

    def __init__(self, job: Which, timeout: Span | None) -> None:
        self._job = job
        self._seconds = None if timeout is None else span_seconds(timeout, "timeout")
        self._limit = None if self._seconds is None else time.monotonic() + self._seconds
        self._begun = self._asked = 0.0

    def begin(self) -> float:
        """Tell how long the next request shall wait."""
        self._begun = time.monotonic()
        left = POLL_SECONDS if self._limit is None else max(0.0, self._limit - self._begun)
        self._asked = min(POLL_SECONDS, left)
        return self._asked

    async def goes_on(self, record: Job) -> None:
        """Wait on, unless the time is over."""
        now = time.monotonic()
        if self._limit is not None and now >= self._limit:
            raise ResultTimeout(
                f"job {record.public_id} is {record.state} and has not ended within "
                f"{self._seconds:g} s",
                job_id=record.public_id,
            )
        if now - self._begun < self._asked / 2:
            await asyncio.sleep(EARLY_SECONDS)


def _parts(wanted: Sequence[Wanted]) -> Iterator[list[Wanted]]:
    part: list[Wanted] = []
    size = 0
    for one in wanted:
        length = len(bytes(one.args))
        if part and (len(part) == PART_JOBS or size + length > PART_BYTES):
            yield part
            part, size = [], 0
        part.append(one)
        size += length
    if part:
        yield part


def _record(reply: Reply) -> Job:
    return reply.read(JobView).record()


def _ending(result: Result) -> Ending:
    body = bytes(result.result if result.state is State.SUCCEEDED else result.error)
    return Ending(
        job=result.job.record(),
        outcome=Outcome(
            job_id=result.job_id,
            task=result.task,
            state=result.state,
            error_code=result.error_code,
            # Of a job without a result and of one whose result is null, the state tells which.
            body=None if body == b"null" else body,
            erased=result.erased,
            reason=result.reason,
            first_id=None if result.job_id == result.job.id else result.job.id,
        ),
    )


def _job(job: Which) -> str:
    return f"/v1/jobs/{_segment(str(job), 'job_id')}"


def _letter(job: Which) -> str:
    return f"/v1/dead-letters/{_segment(str(job), 'job_id')}"


def _segment(text: str, what: str) -> str:
    """Write a name as one piece of a path, whatever it is made of."""
    quoted = quote(check_text(text, what), safe="")
    return quoted.replace(".", "%2E") if text in (".", "..") else quoted


def _key(request_id: str | None) -> str | None:
    """Check what is to go into a header."""
    if request_id is not None and not (request_id.isascii() and request_id.isprintable()):
        raise BadData("over HTTP a request_id must be printable ASCII")
    return request_id


def _listing(query: Query) -> list[tuple[str, str]]:
    said = [("state", state.value) for state in query.states]
    said += [
        (name, str(value))
        for name, value in (
            ("tenant", query.tenant),
            ("queue", query.queue),
            ("task", query.task),
            ("parent", query.parent_id),
            ("workflow_id", query.workflow_id),
            ("correlation_id", query.correlation_id),
            ("error_code", query.error_code),
            ("letter", query.letter),
            ("before", query.before),
            ("limit", query.limit),
        )
        if value is not None
    ]
    said += [("label", f"{name}={text}") for name, text in query.labels]
    return [*said, *_created(query)]


def _created(asked: Query | LetterFilter) -> Iterator[tuple[str, str]]:
    if asked.created_from is not None:
        yield "created_from", instant(asked.created_from).isoformat()
    if asked.created_until is not None:
        yield "created_until", instant(asked.created_until).isoformat()


def _lettered(letters: LetterFilter) -> Iterator[tuple[str, str]]:
    yield "letter", letters.letter.value
    for name in ("tenant", "queue", "task", "error_code"):
        if (value := getattr(letters, name)) is not None:
            yield name, value
    yield from _created(letters)


def _which(letters: LetterFilter, before: JobId | None, limit: int) -> dict[str, Any]:
    return {
        "tenant": letters.tenant,
        "queue": letters.queue,
        "task": letters.task,
        "error_code": letters.error_code,
        "created_from": letters.created_from and instant(letters.created_from),
        "created_until": letters.created_until and instant(letters.created_until),
        "before": before,
        "limit": limit,
    }
