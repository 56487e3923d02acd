"""The worker's side of durable calls: returns what earlier attempts recorded, and records what this
one does, each time before the handler continues.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from uuid import UUID

from msgspec.structs import replace

from holdfast.errors import HoldfastError, NoSuchJob, PermanentError, Refused, StoreError
from holdfast.flow.submit import decide_child
from holdfast.ids import mint_request
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.payload import BODY_LIMIT, check_body, encode_body
from holdfast.lifecycle.record import (
    RECHECKS,
    Created,
    Job,
    JobId,
    LoggedEvent,
    NewJob,
    Refusal,
)
from holdfast.lifecycle.retry import recheck_delay
from holdfast.lifecycle.signals import oldest_signal
from holdfast.lifecycle.times import After, Time, seconds
from holdfast.operations.batches import BATCH_BYTES, Batcher
from holdfast.operations.store_cache import KnownTerms
from holdfast.ports.store import Store
from holdfast.queries.outcomes import Outcome, read_outcome
from holdfast.queries.succession import Succession, decide_succession, find_newest
from holdfast.tasks.durable.protocol import (
    AwaitSignal,
    ChildSpawned,
    Entry,
    GatherChildren,
    Gathered,
    NoSignal,
    NotRecorded,
    Recall,
    Recalled,
    RecordQuestion,
    RecordStep,
    Reply,
    Request,
    Signalled,
    SpawnChild,
    StartStep,
    StepRecorded,
    Suspend,
    TakeSignal,
    Unsettled,
)
from holdfast.tasks.durable.records import recorded_entries
from holdfast.telemetry import Meters
from holdfast.worker.compensation import add_story, note_compensated
from holdfast.worker.outbox import CommitQueue
from holdfast.worker.owned_job import OwnedJob

log = logging.getLogger(__name__)

TRIES = 20
"""How often a wait is decided that races with signals; between two, one was sent or consumed."""


SHORT_HISTORY = 100
"""The revision up to which the events of several jobs are read by one statement."""
HISTORIES = 50
"""Jobs whose events one statement reads: each may have many with large bodies."""


class DurableCalls:
    """Answers the durable calls of all attempts of a worker."""

    def __init__(self, store: Store, commands: CommitQueue, meters: Meters) -> None:
        self._store = store
        self._meters = meters
        self._commands = commands
        self._terms = KnownTerms(store)
        # As if each had this many bytes: so some tens of them are read together, not hundreds.
        self._histories: Batcher[JobId, list[LoggedEvent]] = Batcher(
            self._read_histories, size=lambda _: BATCH_BYTES // HISTORIES, name=str
        )

    async def answer(
        self, owned: OwnedJob, request: Request, send: Callable[[Reply], None]
    ) -> None:
        """Execute a durable call, and send the reply, whatever happens."""
        try:
            reply = await self._make_reply(owned, request)
        except HoldfastError as error:
            reply = NotRecorded(
                error.code,
                str(error),
                isinstance(error, PermanentError),
                again=isinstance(error, StoreError),
            )
        except Exception as error:  # the edge: a handler must not wait for ever
            log.exception("a durable call failed")
            reply = NotRecorded("journal_failed", repr(error))
        except BaseException:
            # The loop is ending. A handler waits for the reply though it is cancelled, too.
            send(NotRecorded("journal_failed", "the worker is stopping"))
            raise
        send(reply)

    async def load_story(self, owned: OwnedJob, steps: frozenset[str]) -> None:
        """Give a compensation what it has to know of the job that it undoes."""
        owned.claimed = await add_story(self._store, owned.claimed, steps)

    async def note_compensated(self, owned: OwnedJob) -> None:
        """Write into the other job's history that this one has undone it."""
        await note_compensated(self._store, owned.claimed, owned.actor.name)

    async def _make_reply(self, owned: OwnedJob, request: Request) -> Reply:
        match request:
            case Recall():
                return Recalled(await self._read_entries(owned))
            case StartStep(name, use):
                return await self._write(owned, name, use, None)
            case RecordStep(name, use, body, failed):
                return await self._write(owned, name, use, body, failed=failed)
            case RecordQuestion(signal, body):
                return await self._write_question(owned, signal, body)
            case AwaitSignal():
                return await self._consume_or_suspend(owned, request)
            case TakeSignal(signals):
                return await self._take_signal(owned, signals)
            case SpawnChild(resumes=before):
                if before is None:
                    return await self._write_child(owned, request)
                return await self._spawn_again(owned, request, before)
            case GatherChildren(ids):
                return await self._read_outcomes(owned.claimed.job, ids)

    async def _read_entries(self, owned: OwnedJob) -> list[Entry]:
        claimed = owned.claimed
        # It runs for the first time: nothing is recorded. An adopted run is older than its worker.
        if claimed.job.attempt <= 1 and claimed.created.resumes is None and not owned.adopted:
            return []
        id_, created = claimed.id, claimed.created
        if owned.record.rev > SHORT_HISTORY or owned.adopted:
            return await recorded_entries(self._store, id_, created)
        # Only the owner records, and its record shows how far. Jobs that wake together are read
        # together.
        [history] = await self._histories.send([id_])
        return await recorded_entries(self._store, id_, created, history)

    async def _read_histories(self, ids: Sequence[JobId]) -> list[list[LoggedEvent]]:
        return await self._store.histories(ids, last=SHORT_HISTORY)

    async def _write(
        self, owned: OwnedJob, name: str, use: int, body: bytes | None, *, failed: bool = False
    ) -> Reply:
        command = c.Step(
            actor=owned.actor,
            request_id=mint_request(),
            name=name,
            use=use,
            started=body is None,
            failed=failed,
            # A child process may have written it: it is not trusted to have checked it.
            body=None if body is None else check_body(body, f"the result of step {name!r}"),
        )
        return _reply_to(await self._commands.ask(owned, command))

    async def _write_question(self, owned: OwnedJob, signal: str, body: bytes) -> Reply:
        command = c.Step(
            actor=owned.actor,
            request_id=mint_request(),
            name=signal,
            started=True,
            body=check_body(body, f"the question {signal!r}"),
        )
        return _reply_to(await self._commands.ask(owned, command))

    async def _write_child(self, owned: OwnedJob, request: SpawnChild) -> Reply:
        """Write a child and the step that remembers it in one commit."""
        made = await self._decide_child(owned, request)
        child = request.child
        command = c.Step(
            actor=owned.actor,
            request_id=mint_request(),
            name=child.task,
            use=request.use,
            body=encode_body({"id": str(child.id), "number": child.step_index}),
            submits=(made,),
        )
        refusal = await self._commands.ask(owned, command)
        if refusal is not None:
            return _reply_to(refusal)
        self._meters.submitted(child.task, made.record.queue)
        return ChildSpawned(str(child.id))

    async def _decide_child(self, owned: OwnedJob, request: SpawnChild) -> NewJob:
        """Decide a child's submit, under the terms of its task."""
        job, child = owned.claimed.job, request.child
        if request.given is not None:
            await self._terms.learn([(job.tenant, child.task)])
        return decide_child(
            child,
            owned.claimed,
            owned.actor.name,
            deadline_at=await self._deadline_of_child(job, child.deadline_at),
            given=request.given,
            terms=self._terms.get,
        )

    async def _spawn_again(self, owned: OwnedJob, request: SpawnChild, before: str) -> Reply:
        """Make a child in place of one that the job before had, unless that one succeeded."""
        old = (await self._store.get([JobId(UUID(before))]))[0]
        if old is None or old.tenant != owned.claimed.job.tenant:
            raise PermanentError(f"no job {before}: it was purged", code="records_gone")
        last = await find_newest(self._store, old)
        if not last.terminal and last.id == old.id:
            # Its parent has ended without success: it is being cancelled.
            return Unsettled()
        if not last.terminal or last.succeeded:
            return ChildSpawned(str(last.id))
        if (line := await self._find_succession(last)) is None:
            return Unsettled()
        child = replace(request.child, resumes=line.resumes, lineage=line.lineage)
        return await self._write_child(owned, replace(request, child=child))

    async def _find_succession(self, child: Job) -> Succession | None:
        """Return what the successor of a child continues from; None while that is being undone."""
        [first] = await self._store.events(child.id, limit=1)
        created = first.created or Created()
        try:
            return await decide_succession(self._store, child, created)
        except Refused as error:
            if error.code == "compensation_running":
                return None
            # All that it did was undone with its end: it is to be done again.
            return await decide_succession(self._store, child, created, from_start=True)

    async def _deadline_of_child(self, job: Job, requested: Time | None) -> Time | None:
        """Return the deadline of a child: at the latest its parent's."""
        if job.deadline_at is None or requested is None:
            return requested if job.deadline_at is None else job.deadline_at
        if isinstance(requested, After):
            requested = (await self._store.clock()).now + requested.micros
        return min(requested, job.deadline_at)

    async def _read_outcomes(self, job: Job, ids: list[str]) -> Gathered:
        """Return the outcomes of children that have all ended, as many as one message holds."""
        children = await self._store.get([JobId(UUID(id_)) for id_ in ids])
        live = [child for child in children if child is not None and not child.terminal]
        if live:
            return Gathered(None, all(child.parent_id != job.id for child in live))
        found: list[Outcome] = []
        size = 0
        for id_, child in zip(ids, children, strict=True):
            if child is None:
                raise NoSuchJob(f"no job {id_}: it was purged", job_id=id_)
            ended = await read_outcome(self._store, child)
            if ended is None:
                return Gathered(None, child.parent_id != job.id)
            size += len(ended.body or b"")
            if found and size > BODY_LIMIT:
                break
            found.append(ended)
        return Gathered(found)

    async def _consume_or_suspend(self, owned: OwnedJob, request: AwaitSignal) -> Reply:
        """Consume the signal if it has arrived, else suspend the job, as the ledger allows."""
        until = None if request.seconds is None else After(seconds(request.seconds))
        if request.signal in RECHECKS:
            until = After(recheck_delay(owned.record))
        for _ in range(TRIES):
            pending = oldest_signal(owned.record, request.signal)
            command: c.Command = (
                c.Step(
                    actor=owned.actor,
                    request_id=mint_request(),
                    name=request.signal,
                    use=request.use,
                    consumes=request.signal,
                )
                if pending is not None
                else c.Wait(
                    actor=owned.actor,
                    request_id=mint_request(),
                    signal=request.signal,
                    until=until,
                )
            )
            refusal = await self._commands.ask(owned, command)
            if refusal is None:
                return Suspend() if pending is None else await self._read_payload(owned, pending)
            if refusal.code not in ("signal_pending", "no_signal"):
                return _reply_to(refusal)
        text = f"signals {request.signal!r} came and went {TRIES} times meanwhile"
        return NotRecorded("busy", text)

    async def _take_signal(self, owned: OwnedJob, signals: Sequence[str]) -> Reply:
        """Consume the oldest of some signals; the ownership check keeps the record fresh.

        Its payload is read first: once it is consumed, it is not asked for again.
        """
        if owned.record.unread_signals:
            [job] = await self._store.get([owned.claimed.id])
            if job is not None:
                owned.learn(job)
        pending = next((one for one in owned.record.signals if one.name in signals), None)
        if pending is None:
            return NoSignal()
        reply = await self._read_payload(owned, pending.rev)
        command = c.Step(
            actor=owned.actor,
            request_id=mint_request(),
            name=pending.name,
            consumes=pending.name,
        )
        refusal = await self._commands.ask(owned, command)
        if refusal is not None:
            return NoSignal() if refusal.code == "no_signal" else _reply_to(refusal)
        return reply

    async def _read_payload(self, owned: OwnedJob, rev: int) -> Reply:
        """Return the reply with the payload of the signal."""
        events = await self._store.events(owned.claimed.id, after=rev - 1, limit=1)
        if not events:
            return Signalled(b"null")
        return Signalled(events[0].body or b"null", events[0].facts.signal)


def _reply_to(refusal: Refusal | None) -> Reply:
    return StepRecorded() if refusal is None else NotRecorded(refusal.code, refusal.message)
