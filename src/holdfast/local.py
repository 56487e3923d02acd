"""The operations on a store at hand: for one actor, and one tenant or all of them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from msgspec.structs import asdict, replace

from holdfast.context import TRACEPARENT
from holdfast.errors import (
    BadData,
    Forbidden,
    HoldfastError,
    NoSuchJob,
    ResultTimeout,
    ValidationError,
    about,
)
from holdfast.flow import intervene
from holdfast.flow import letters as letter_box
from holdfast.flow import redrive as redriving
from holdfast.flow.history import (
    EventPage,
    ReadEvent,
    event_page,
    events_without_bodies,
    history,
    some_events,
)
from holdfast.flow.intervene import OPERATOR_HOLD
from holdfast.flow.letters import DeadLetter, LetterFilter, LetterPage
from holdfast.flow.lineage import Lineage, lineage
from holdfast.flow.missing import missing
from holdfast.flow.outcomes import last_event, linked_retry, outcome_of
from holdfast.flow.redrive import AS_IT_WAS, Settled, Wish
from holdfast.flow.submit import refused_submit
from holdfast.flow.why import Why, why
from holdfast.identity import mint_id
from holdfast.lifecycle.job import Actor, Job, JobId, LoggedEvent, NewJob
from holdfast.lifecycle.payload import Body, check_body, check_labels, check_text, decode_body
from holdfast.lifecycle.policy import DEFAULT_POLICY, Policy, policy_faults, told_faults
from holdfast.lifecycle.reserved import check_not_reserved
from holdfast.lifecycle.states import KeyKind, Link, Role, State
from holdfast.lifecycle.submit import Submission
from holdfast.lifecycle.submit import submit as decide_submit
from holdfast.lifecycle.terms import by_name
from holdfast.operations import (
    BULK,
    Answer,
    Depth,
    Ending,
    Growth,
    Progress,
    Roll,
    Wanted,
    Which,
)
from holdfast.options import (
    Backoff,
    check_fields,
    due_time,
    job_fields,
    read_instant,
    stated_terms,
)
from holdfast.ports import LogLine, Page, Query, QueueStatus, SubmitRefused, WorkerStatus
from holdfast.services.session import Session
from holdfast.spans import Span, span_seconds
from holdfast.stores.narrowing import narrowing
from holdfast.tasks import Task
from holdfast.telemetry.tracing import trace_id_of
from holdfast.webhooks import MadeWebhook, WantedWebhook, WebhookDesk, WebhookList, WebhookView

DEFAULT_TENANT = "default"
AMONG_OTHERS = 10
"""How many times as many jobs are looked at where most of them may be other tenants'."""
_BELOW_MILLISECONDS = 80
"""The bits of an id that come after its time."""
_KEYS = ("workflow_id", "correlation_id", "error_code")
_ASIDE = (
    "task", "args", "task_version", "tenant", "parent", "traceparent", "deadline_at", "policy"
)  # fmt: skip
"""Of what is wanted, all that is no option of a submission."""


class LocalOperations:
    """Operations over an open session."""

    def __init__(
        self,
        session: Session,
        *,
        name: str,
        tenant: str | None = DEFAULT_TENANT,
        queues: frozenset[str] | None = None,
        tasks: Mapping[str, Task[Any, Any]] | None = None,
        awaited: Callable[[JobId], Awaitable[None]] | None = None,
    ) -> None:
        """Act as `name` for a tenant and in some queues; None acts for all.

        Of `tasks` the terms and signatures are known; any other task is taken as it is asked for.
        `awaited` is told of each job that somebody begins to wait for.
        """
        self._session = session
        self._store = session.store
        self._gateway = Actor(Role.GATEWAY, check_text(name, "name", limit=200))
        self._control = Actor(Role.CONTROL, name)
        self._tenant = tenant
        self._queues = queues
        self._tasks = tasks or {}
        self._awaited = awaited

    async def now(self) -> int:
        """Tell the store's clock."""
        return (await self._store.clock()).now

    async def submit(self, wanted: Sequence[Wanted]) -> list[Answer]:
        """Submit jobs together; each is answered for itself, in order.

        A job for a queue that is not served here refuses all of them.
        """
        answers: dict[int, Answer] = {}
        decided: dict[int, NewJob] = {}
        await self._session.terms.learn(
            (self._tenant or one.tenant or DEFAULT_TENANT, one.task)
            for one in wanted
            if one.task not in self._tasks
        )
        for number, one in enumerate(wanted):
            try:
                decided[number] = await self._decide(one)
            except HoldfastError as error:
                answers[number] = error
        for new in decided.values():
            self._check_queue(new.record.queue)
        outcomes = await self._session.together.submit(list(decided.values()))
        for number, written in zip(decided, outcomes, strict=True):
            answers[number] = (
                refused_submit(written) if isinstance(written, SubmitRefused) else written
            )
        return [answers[number] for number in range(len(wanted))]

    async def _decide(self, wanted: Wanted) -> NewJob:
        task = self._tasks.get(wanted.task)
        policy = _policy(wanted, task)
        fields = job_fields(_options(wanted), policy) | _deadline(wanted)
        check_fields(fields)
        fields.setdefault("policy", policy)
        if task is not None:
            fields = {
                "task_version": task.version,
                "queue": task.queue,
                "priority": task.priority,
                "needs": task.needs,
            } | fields
        if wanted.task_version is not None:
            fields["task_version"] = wanted.task_version
        if wanted.parent is not None:
            with about("parent"):
                parent = await self.get(wanted.parent)
            fields |= {"parent_id": parent.id, "link_kind": Link.CHILD}
        if wanted.traceparent is not None:
            fields["env"] = {**fields.get("env", {}), TRACEPARENT: wanted.traceparent}
            fields["trace_id"] = trace_id_of(wanted.traceparent)
        fields["tenant"] = self._tenant_of(wanted.tenant)
        body = _arguments(wanted, task)
        submission = Submission(id=mint_id(), task=wanted.task, body=body, **fields)
        if task is None:
            submission = by_name(
                submission,
                self._session.terms.get(submission.tenant, wanted.task),
                given=fields,
                stated=stated_terms(_options(wanted)) if wanted.policy is None else None,
            )
        return decide_submit(submission, self._gateway)

    def _tenant_of(self, said: str | None) -> str:
        if self._tenant is None:
            return DEFAULT_TENANT if said is None else said
        if said not in (None, self._tenant):
            raise BadData(f"tenant must be left out, or be {self._tenant!r}", field="tenant")
        return self._tenant

    async def get(self, job: Which) -> Job:
        """Read a job."""
        id_ = await self._look_up(job)
        record = None if id_ is None else (await self._session.together.get([id_]))[0]
        if record is not None and self._may_see(record):
            return record
        if self._queues is not None:
            raise NoSuchJob(f"no job {job}", job_id=str(job))
        # The same for a job that is another tenant's as for one that never was.
        raise await missing(
            self._session.store, job, id=id_, tenant=self._tenant, names_tenant=False
        )

    def _may_see(self, job: Job) -> bool:
        return self._tenant in (None, job.tenant) and self._serves(job.queue)

    def _serves(self, queue: str) -> bool:
        return self._queues is None or queue in self._queues

    def queue_of(self, said: str | None) -> str | None:
        """Tell which queue a list is about; one that is for several must be told which."""
        if self._queues is None:
            return said
        if said is None and len(self._queues) == 1:
            return next(iter(self._queues))
        if said is None:
            raise BadData(f"name a queue: {', '.join(sorted(self._queues))}")
        self._check_queue(said)
        return said

    def _check_queue(self, queue: str) -> None:
        if self._queues is not None and queue not in self._queues:
            raise Forbidden(f"not for queue {queue!r}, but {', '.join(sorted(self._queues))}")

    async def _look_up(self, job: Which) -> JobId | None:
        if isinstance(job, UUID):
            return job
        text = check_text(job, "job_id")
        found = await self._store.look_up(self._tenant or DEFAULT_TENANT, KeyKind.JOB_ID, text)
        if found is None and self._tenant is None:
            try:
                return JobId(UUID(text))
            except ValueError:
                return None
        return found

    async def find(self, query: Query) -> Page:
        """List jobs, newest first."""
        if self._tenant is not None:
            query = replace(query, tenant=self._tenant_of(query.tenant))
        query = replace(query, queue=self.queue_of(query.queue))
        _check_filters(query, ("tenant", "queue", "task", *_KEYS))
        with about("labels"):
            check_labels(dict(query.labels), "labels")
        among_others = query.look is not None and not await self._looks_at_own(query)
        if query.look is not None and among_others:
            query = replace(query, look=query.look * AMONG_OTHERS)
        page = await self._store.find(query)
        if among_others:
            page = _rounded(page, query.before)
        if query.look and len(page.jobs) < query.limit and await self._are_all(query, page):
            return Page(page.jobs, None)
        return page

    async def _looks_at_own(self, query: Query) -> bool:
        """Whether a bounded look meets none but one's own jobs.

        Else it looks at more of them, and the place where it ended is rounded: a tenant learns no
        id of others, and as little as may be of how many they have.
        """
        if self._tenant is None or narrowing(query) in ("tenant", "parent_id"):
            return True
        counts = [await self._store.counts(tenant) for tenant in (self._tenant, None)]
        own, everybodys = (sum(one.jobs for one in found) for found in counts)
        return own == everybodys

    async def _are_all(self, query: Query, page: Page) -> bool:
        """Whether the summaries know of no more: then nobody has to look on to find nothing."""
        counted = Query(tenant=query.tenant, states=query.states, queue=query.queue)
        if page.next is None or query != replace(counted, limit=query.limit, look=query.look):
            return False
        found = (
            one.jobs
            for one in await self._store.counts(query.tenant)
            if query.queue in (None, one.queue) and (not query.states or one.state in query.states)
        )
        return sum(found) <= len(page.jobs)

    async def event_page(self, job: Which, *, after: int = 0, limit: int = 1000) -> EventPage:
        """Read a job's events after a revision, each complete in itself, in bounded memory."""
        return await event_page(self._store, await self.get(job), after=after, limit=limit)

    async def events_without_bodies(self, job: Job, limit: int) -> list[LoggedEvent]:
        """Read all events of a job that was read just before; Refused if there are more."""
        return await events_without_bodies(self._store, job, limit)

    async def history(self, job: Which) -> list[ReadEvent]:
        """Read a job's whole history, each event complete in itself."""
        return await history(self._store, await self._id(job))

    async def events_after(
        self, job: Which, *, after: int = 0, wait_seconds: float = 0.0
    ) -> list[ReadEvent]:
        """Read some events of a job after a revision; if there are none, wait so long for one."""
        id_ = await self._id(job)
        if self._awaited is not None:
            await self._awaited(id_)
        events = await some_events(self._store, id_, after)
        if not events and wait_seconds > 0:
            await self._session.watching.moved(id_, after, wait_seconds)
            events = await some_events(self._store, id_, after)
        return events

    async def progress(self, job: Which) -> Progress | None:
        """Read how far a job is, by the last report of its handler; None if it made none."""
        event = await self._store.last_progress(await self._id(job))
        if event is None:
            return None
        value = decode_body(event.body)
        return Progress(value=value, at=event.at, attempt=event.attempt, rev=event.rev)

    async def logs(self, job: Which, *, after: int = 0, limit: int = 1000) -> list[LogLine]:
        """Read what a job's handler said by `ctx.log`, after a position."""
        return await self._store.logs((await self.get(job)).id, after=after, limit=limit)

    async def ended(self, job: Which, timeout: Span | None = None) -> Job:
        """Wait until a job has ended; ResultTimeout if that takes longer."""
        return await self._ended(await self._id(job), _seconds(timeout))

    async def outcome(self, job: Which, timeout: Span | None = None) -> Ending:
        """Wait until a job has come to something, by its last try; ResultTimeout as `ended`."""
        seconds = _seconds(timeout)
        limit = None if seconds is None else time.monotonic() + seconds
        first = record = await self._ended(await self._id(job), seconds)
        while True:
            last = await last_event(self._store, record.id)
            again = await linked_retry(self._store, last)
            if again is None:
                told = outcome_of(record, last, first.public_id)
                return Ending(job=first, outcome=told)
            left = None if limit is None else round(max(0.0, limit - time.monotonic()), 3)
            record = await self._ended(again.id, left)

    async def _ended(self, id_: JobId, seconds: float | None) -> Job:
        if self._awaited is not None:
            await self._awaited(id_)
        if seconds == 0:
            return await self._ended_by_now(id_)
        return await self._session.watching.ended(id_, seconds)

    async def _ended_by_now(self, id_: JobId) -> Job:
        record = await self.get(id_)
        if not record.terminal:
            raise ResultTimeout(
                f"job {record.public_id} is {record.state} and has not ended",
                job_id=record.public_id,
            )
        return record

    async def _id(self, job: Which) -> JobId:
        """Tell a job's internal id; one that may be of any tenant is not looked up beforehand."""
        if self._tenant is None and self._queues is None and isinstance(job, UUID):
            return job
        return (await self.get(job)).id

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
        return await intervene.cancel(
            self._store,
            await self._id(job),
            self._control,
            hard=hard,
            reason=reason,
            request_id=request_id,
            expected_rev=expected_rev,
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
        with about("payload"):
            body = check_body(body, f"the payload of signal {name!r}")
        id_, together = await self._id(job), self._session.together
        limits = await self._session.limits.get()
        async with together.turn(id_):
            return await intervene.signal(
                together,
                id_,
                self._control,
                name,
                body,
                limit=limits.signals,
                request_id=request_id,
                expected_rev=expected_rev,
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
        id_, together = await self._id(job), self._session.together
        limits = await self._session.limits.get()
        async with together.turn(id_):
            return await intervene.resolve(
                together,
                id_,
                self._control,
                step,
                happened=happened,
                result=result,
                force=force,
                limit=limits.signals,
                request_id=request_id,
                expected_rev=expected_rev,
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
        return await intervene.hold(
            self._store,
            await self._id(job),
            self._control,
            name,
            reason=reason,
            request_id=request_id,
            expected_rev=expected_rev,
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
        return await intervene.unhold(
            self._store,
            await self._id(job),
            self._control,
            name,
            reason=reason,
            request_id=request_id,
            expected_rev=expected_rev,
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
        return await intervene.reschedule(
            self._store,
            await self._id(job),
            self._control,
            due_time(delay, run_at),
            reason=reason,
            request_id=request_id,
            expected_rev=expected_rev,
        )

    async def why(self, job: Which) -> Why:
        """Tell why a job stands where it stands."""
        return await why(self._store, await self._id(job), tenant=self._tenant)

    async def lineage(self, job: Which) -> Lineage:
        """Read the tree that a job stands in."""
        return await lineage(self._store, await self.get(job), may_see=self._may_see)

    async def letters(
        self, letters: LetterFilter, *, before: JobId | None = None, limit: int = 50
    ) -> LetterPage:
        """List dead letters, newest job first."""
        wanted = self._letters_of(letters)
        return await letter_box.list_letters(self._store, wanted, before=before, limit=limit)

    def _letters_of(self, letters: LetterFilter) -> LetterFilter:
        letters = replace(letters, queue=self.queue_of(letters.queue))
        _check_filters(letters, ("tenant", "queue", "task", "error_code"))
        if self._tenant is None:
            return letters
        return replace(letters, tenant=self._tenant_of(letters.tenant))

    def _check_wish(self, wish: Wish) -> Wish:
        """Refuse to move a job into a queue that one is not for."""
        if wish.queue is not None:
            with about("queue"):
                check_not_reserved(wish.queue, "queue")
            self.queue_of(wish.queue)
        return wish

    async def letter(self, job: Which) -> DeadLetter:
        """Read one dead letter."""
        return await letter_box.show(self._store, await self._id(job))

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
        return await redriving.redrive(
            self._store,
            await self._id(job),
            self._control,
            wish=self._check_wish(wish),
            again=again,
            reason=reason,
            request_id=request_id,
            expected_rev=expected_rev,
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
        return await redriving.discard(
            self._store,
            await self._id(job),
            self._control,
            reason=reason,
            request_id=request_id,
            expected_rev=expected_rev,
        )

    async def count_letters(self, letters: LetterFilter) -> int:
        """Count dead letters."""
        return await letter_box.count_letters(self._store, self._letters_of(letters))

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
        return await redriving.redrive_all(
            self._store,
            self._letters_of(letters),
            self._control,
            wish=self._check_wish(wish),
            reason=reason,
            before=before,
            limit=limit,
        )

    async def discard_all(
        self,
        letters: LetterFilter,
        *,
        reason: str | None = None,
        before: JobId | None = None,
        limit: int = BULK,
    ) -> Settled:
        """Put open letters away, newest job first; `next` of what comes back goes on."""
        return await redriving.discard_all(
            self._store,
            self._letters_of(letters),
            self._control,
            reason=reason,
            before=before,
            limit=limit,
        )

    async def queues(self) -> list[Depth]:
        """List queues by name: their depth, and whether they are paused."""
        depth: dict[str, dict[State, int]] = {}
        for one in await self._store.counts(self._tenant):
            states = depth.setdefault(one.queue, {})
            states[one.state] = states.get(one.state, 0) + one.jobs
        paused = {one.name: one for one in await self._store.queues()}
        # A queue that a tenant has no jobs in is none of its business.
        names = depth.keys() if self._tenant is not None else depth.keys() | paused.keys()
        return [
            _depth(name, depth.get(name, {}), paused.get(name))
            for name in sorted(names)
            if self._serves(name)
        ]

    async def pause(
        self, queue: str, *, reason: str | None = None, request_id: str | None = None
    ) -> QueueStatus:
        """Let no job of a queue be claimed; only for whoever acts for all tenants."""
        return await self._store.pause(
            check_text(queue, "queue", limit=200),
            actor=self._control.label,
            reason=_text(reason, "reason"),
            request_id=_text(request_id, "request_id"),
        )

    async def resume(
        self, queue: str, *, reason: str | None = None, request_id: str | None = None
    ) -> QueueStatus:
        """Let a queue's jobs be claimed again; only for whoever acts for all tenants."""
        return await self._store.resume(
            check_text(queue, "queue", limit=200),
            actor=self._control.label,
            reason=_text(reason, "reason"),
            request_id=_text(request_id, "request_id"),
        )

    async def add_webhook(self, wanted: WantedWebhook) -> MadeWebhook:
        """Make a webhook: from now on it is told of the ends of jobs."""
        return await self._webhook_desk.add(wanted)

    async def webhooks(self, *, before: str | None = None, limit: int = 100) -> WebhookList:
        """List webhooks, newest first."""
        return await self._webhook_desk.page(before=before, limit=limit)

    async def remove_webhook(self, id: str) -> WebhookView:
        """End a webhook; what was not delivered yet is not."""
        return await self._webhook_desk.remove(id)

    @property
    def _webhook_desk(self) -> WebhookDesk:
        return WebhookDesk(self._store, actor=self._control.label, tenant=self._tenant)

    async def workers(self, *, seen_since: int | None = None, limit: int = 1000) -> Roll:
        """List workers, live, silent and ended ones."""
        now = (await self._store.clock()).now
        workers = await self._store.workers(seen_since=seen_since, limit=limit)
        if (own := await self._own_queues()) is not None:
            workers = [_narrowed(one, own) for one in workers if own.intersection(one.queues)]
        return Roll(now=now, workers=workers)

    async def _own_queues(self) -> frozenset[str] | None:
        """Tell which queues one may know of: those served, and where a tenant has jobs; or all."""
        if self._tenant is None:
            return self._queues
        counts = await self._store.counts(self._tenant)
        return frozenset(one.queue for one in counts if self._serves(one.queue))


def _rounded(page: Page, before: JobId | None) -> Page:
    """Let a page whose look ended at another's job go on from a whole millisecond instead.

    An id begins with the milliseconds at which it was made. Jobs of the last one that was looked
    at are left to the next page.
    """
    ended_at = page.next
    if ended_at is None or (page.jobs and page.jobs[-1].id == ended_at):
        return page
    last = ended_at.int >> _BELOW_MILLISECONDS
    following = JobId(UUID(int=last + 1 << _BELOW_MILLISECONDS))
    if before is not None and following >= before:
        # All that was looked at is of one millisecond: there is no other way on.
        return page
    jobs = [job for job in page.jobs if job.id.int >> _BELOW_MILLISECONDS > last]
    return replace(page, jobs=jobs, next=following)


def _options(wanted: Wanted) -> Any:
    said = asdict(wanted)
    if isinstance(wanted.backoff, Growth):
        said["backoff"] = Backoff(**asdict(wanted.backoff))
    return {name: value for name, value in said.items() if value is not None and name not in _ASIDE}


def _deadline(wanted: Wanted) -> dict[str, Any]:
    if wanted.deadline_at is None:
        return {}
    with about("deadline_at"):
        if wanted.deadline is not None:
            raise BadData("give a deadline or a deadline_at, not both")
        return {"deadline_at": read_instant(wanted.deadline_at, "deadline_at")}


def _policy(wanted: Wanted, task: Task[Any, Any] | None) -> Policy:
    """Tell the terms that the options change: those said, else those of a known task."""
    if wanted.policy is None:
        return DEFAULT_POLICY if task is None else task.policy
    policy = wanted.policy.policy()
    if faults := policy_faults(policy):
        raise BadData(f"policy: {told_faults(faults)}", field=f"policy.{faults[0].term}")
    return policy


def _arguments(wanted: Wanted, task: Task[Any, Any] | None) -> Body:
    with about("args"):
        body = check_body(bytes(wanted.args), "args")
        if not isinstance(decode_body(body), dict):
            raise ValidationError("args must be an object of named arguments")
        if task is not None:
            task.bind(body)
        return body


def _depth(queue: str, jobs: dict[State, int], status: QueueStatus | None) -> Depth:
    jobs = {state: number for state, number in jobs.items() if number}
    if status is None or status.paused_at is None:
        return Depth(queue=queue, jobs=jobs)
    return Depth(
        queue=queue,
        jobs=jobs,
        paused_at=status.paused_at,
        paused_by=status.paused_by,
        reason=status.reason,
    )


def _seconds(timeout: Span | None) -> float | None:
    return None if timeout is None else span_seconds(timeout, "timeout")


def _narrowed(worker: WorkerStatus, own: frozenset[str]) -> WorkerStatus:
    """Tell of a worker what one can see anyway: its own queues, not what others run there."""
    queues = tuple(queue for queue in worker.queues if queue in own)
    return replace(worker, queues=queues, tasks=())


def _check_filters(asked: Query | LetterFilter, names: Sequence[str]) -> None:
    """Refuse texts that no job can have: not every store can be asked for them."""
    for name in names:
        if (value := getattr(asked, name)) is not None:
            check_text(value, name, empty=True)


def _text(value: str | None, what: str) -> str | None:
    return None if value is None else check_text(value, what)
