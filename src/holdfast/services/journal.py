"""The journal: a worker's side of durable calls. It recalls what earlier attempts recorded, and
writes down what this one does, each time before the handler goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from uuid import UUID

from msgspec.structs import replace

from holdfast.durable.messages import (
    Await,
    Begin,
    Entry,
    Gather,
    Gathered,
    Parked,
    Recall,
    Recalled,
    Record,
    Reply,
    Request,
    Signalled,
    Spawn,
    Spawned,
    Unsettled,
    Written,
)
from holdfast.durable.messages import Refused as NotWritten
from holdfast.durable.records import recorded_entries
from holdfast.errors import HoldfastError, NoSuchJob, PermanentError, Refused
from holdfast.flow.outcomes import Outcome, outcome
from holdfast.flow.succession import Succession, newest, succession
from holdfast.identity import mint_request
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.job import RECHECKS, Actor, Created, Job, JobId, NewJob, Refusal
from holdfast.lifecycle.payload import BODY_LIMIT, check_body, encode_body
from holdfast.lifecycle.retry import recheck_delay
from holdfast.lifecycle.signals import oldest_signal
from holdfast.lifecycle.states import Link, Role, State
from holdfast.lifecycle.submit import submit
from holdfast.lifecycle.terms import by_name
from holdfast.lifecycle.times import After, Time, seconds
from holdfast.ports import Store
from holdfast.services.desk import Desk
from holdfast.services.held import Held
from holdfast.services.known_terms import KnownTerms
from holdfast.services.retelling import note_compensated, retold
from holdfast.telemetry import Meters

log = logging.getLogger(__name__)

TRIES = 20
"""How often a wait looks again that races with signals; each turn, somebody sent or took one."""


class Journal:
    """Answers the durable calls of all attempts of a worker."""

    def __init__(self, store: Store, desk: Desk, meters: Meters) -> None:
        """Read from the store, write through the desk."""
        self._store = store
        self._meters = meters
        self._desk = desk
        self._terms = KnownTerms(store)

    async def answer(self, held: Held, request: Request, tell: Callable[[Reply], None]) -> None:
        """Do what an attempt asks for, and tell it what came of it, whatever happens."""
        try:
            reply = await self._reply(held, request)
        except HoldfastError as error:
            reply = NotWritten(error.code, str(error), isinstance(error, PermanentError))
        except Exception as error:  # the journal's edge: a handler must not wait for ever
            log.exception("a durable call failed")
            reply = NotWritten("journal_failed", repr(error))
        except BaseException:
            # The loop is ending. A handler waits for the reply though it is cancelled, too.
            tell(NotWritten("journal_failed", "the worker is ending"))
            raise
        tell(reply)

    async def retell(self, held: Held, steps: frozenset[str]) -> None:
        """Have a compensation know the job that it undoes."""
        held.claimed = await retold(self._store, held.claimed, steps)

    async def note_compensated(self, held: Held) -> None:
        """Write into the other job's history that this one has undone it."""
        await note_compensated(self._store, held.claimed, held.actor.name)

    async def _reply(self, held: Held, request: Request) -> Reply:
        match request:
            case Recall():
                return Recalled(await self._recall(held))
            case Begin(name, use):
                return await self._write(held, name, use, None)
            case Record(name, use, body, failed):
                return await self._write(held, name, use, body, failed=failed)
            case Await():
                return await self._await(held, request)
            case Spawn(resumes=before):
                if before is None:
                    return await self._spawn(held, request)
                return await self._spawn_again(held, request, before)
            case Gather(ids):
                return await self._gather(held.claimed.job, ids)

    async def _recall(self, held: Held) -> list[Entry]:
        claimed = held.claimed
        # Nobody has run it before: there is nothing to be read.
        if claimed.job.attempt <= 1 and claimed.created.resumes is None:
            return []
        return await recorded_entries(self._store, claimed.job.id, claimed.created)

    async def _write(
        self, held: Held, name: str, use: int, body: bytes | None, *, failed: bool = False
    ) -> Reply:
        command = c.Step(
            actor=held.actor,
            request_id=mint_request(),
            name=name,
            use=use,
            started=body is None,
            failed=failed,
            # A child process may have written it: it is not trusted to have checked it.
            body=None if body is None else check_body(body, f"the result of step {name!r}"),
        )
        return _told(await self._desk.ask(held, command))

    async def _spawn(self, held: Held, request: Spawn) -> Reply:
        """Write a child and the step that remembers it in one commit."""
        made = await self._child(held, request)
        child = request.child
        command = c.Step(
            actor=held.actor,
            request_id=mint_request(),
            name=child.task,
            use=request.use,
            body=encode_body({"id": str(child.id), "number": child.step_index}),
            submits=(made,),
        )
        refusal = await self._desk.ask(held, command)
        if refusal is not None:
            return _told(refusal)
        self._meters.submitted(child.task, made.record.queue)
        return Spawned(str(child.id))

    async def _child(self, held: Held, request: Spawn) -> NewJob:
        """Decide a child's submit: whose child it is, and what its task's terms are."""
        job, child = held.claimed.job, request.child
        child = replace(
            child,
            tenant=job.tenant,
            parent_id=job.id,
            link_kind=Link.CHILD,
            workflow_id=child.workflow_id or job.workflow_id,
            correlation_id=child.correlation_id or held.claimed.correlation_id,
            deadline_at=await self._deadline(job, child.deadline_at),
        )
        if request.given is not None:
            await self._terms.learn([(child.tenant, child.task)])
            terms = self._terms.get(child.tenant, child.task)
            child = by_name(child, terms, given=request.given, stated=child.stated)
        return submit(child, Actor(Role.GATEWAY, held.actor.name))

    async def _spawn_again(self, held: Held, request: Spawn, before: str) -> Reply:
        """Make a child in place of one that the job before had, unless that one succeeded."""
        old = (await self._store.get([JobId(UUID(before))]))[0]
        if old is None or old.tenant != held.claimed.job.tenant:
            raise PermanentError(f"no job {before}: it was purged", code="records_gone")
        last = await newest(self._store, old)
        if not last.terminal and last.id == old.id:
            # Its parent has ended without success: it is being cancelled.
            return Unsettled()
        if not last.terminal or last.state is State.SUCCEEDED:
            return Spawned(str(last.id))
        if (line := await self._line(last)) is None:
            return Unsettled()
        child = replace(request.child, resumes=line.resumes, lineage=line.lineage)
        return await self._spawn(held, replace(request, child=child))

    async def _line(self, child: Job) -> Succession | None:
        """Say what the successor of a child continues from; None while that is being undone."""
        [first] = await self._store.events(child.id, limit=1)
        created = first.created or Created()
        try:
            return await succession(self._store, child, created)
        except Refused as error:
            if error.code == "compensation_running":
                return None
            # All that it did was undone with its end: it is to be done again.
            return await succession(self._store, child, created, from_start=True)

    async def _deadline(self, job: Job, wished: Time | None) -> Time | None:
        """Let no child have longer than its parent."""
        if job.deadline_at is None or wished is None:
            return wished if job.deadline_at is None else job.deadline_at
        if isinstance(wished, After):
            wished = (await self._store.clock()).now + wished.micros
        return min(wished, job.deadline_at)

    async def _gather(self, job: Job, ids: list[str]) -> Gathered:
        """Return what children came to, as many as one message holds, if all have ended."""
        children = await self._store.get([JobId(UUID(id_)) for id_ in ids])
        live = [child for child in children if child is not None and not child.terminal]
        if live:
            return Gathered(None, all(child.parent_id != job.id for child in live))
        found: list[Outcome] = []
        size = 0
        for id_, child in zip(ids, children, strict=True):
            if child is None:
                raise NoSuchJob(f"no job {id_}: it was purged", job_id=id_)
            told = await outcome(self._store, child)
            if told is None:
                return Gathered(None, child.parent_id != job.id)
            size += len(told.body or b"")
            if found and size > BODY_LIMIT:
                break
            found.append(told)
        return Gathered(found)

    async def _await(self, held: Held, request: Await) -> Reply:
        """Consume the signal if it is there, else park; whichever the ledger allows."""
        until = None if request.seconds is None else After(seconds(request.seconds))
        if request.signal in RECHECKS:
            until = After(recheck_delay(held.record))
        for _ in range(TRIES):
            pending = oldest_signal(held.record, request.signal)
            command: c.Command = (
                c.Step(
                    actor=held.actor,
                    request_id=mint_request(),
                    name=request.signal,
                    use=request.use,
                    consumes=request.signal,
                )
                if pending is not None
                else c.Wait(
                    actor=held.actor,
                    request_id=mint_request(),
                    signal=request.signal,
                    until=until,
                )
            )
            refusal = await self._desk.ask(held, command)
            if refusal is None:
                return Parked() if pending is None else await self._signalled(held, pending)
            if refusal.code not in ("signal_pending", "no_signal"):
                return _told(refusal)
        text = f"signals {request.signal!r} came and went {TRIES} times meanwhile"
        return NotWritten("busy", text)

    async def _signalled(self, held: Held, rev: int) -> Reply:
        """Read what a signal brought."""
        events = await self._store.events(held.claimed.job.id, after=rev - 1, limit=1)
        if not events:
            return Signalled(b"null")
        return Signalled(events[0].body or b"null", events[0].facts.signal)


def _told(refusal: Refusal | None) -> Reply:
    return Written() if refusal is None else NotWritten(refusal.code, refusal.message)
