"""The journal: a worker's side of durable calls. It recalls what earlier attempts recorded, and
writes down what this one does, each time before the handler goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from holdfast.durable.messages import (
    Await,
    Begin,
    Entry,
    Parked,
    Recall,
    Recalled,
    Record,
    Refused,
    Reply,
    Request,
    Signalled,
    Written,
)
from holdfast.errors import HoldfastError
from holdfast.identity import mint_request
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.job import LoggedEvent, Refusal
from holdfast.lifecycle.payload import check_body
from holdfast.lifecycle.states import EventType
from holdfast.lifecycle.times import After, seconds
from holdfast.ports import Store
from holdfast.services.desk import Desk
from holdfast.services.held import Held
from holdfast.services.retelling import all_events, note_compensated, retold

TRIES = 20
"""How often a wait looks again that races with signals; each turn, somebody sent or took one."""


class Journal:
    """Answers the durable calls of all attempts of a worker."""

    def __init__(self, store: Store, desk: Desk) -> None:
        """Read from the store, write through the desk."""
        self._store = store
        self._desk = desk

    async def answer(self, held: Held, request: Request, tell: Callable[[Reply], None]) -> None:
        """Do what an attempt asks for, and tell it what came of it, whatever happens."""
        try:
            reply = await self._reply(held, request)
        except HoldfastError as error:
            reply = Refused(error.reason_code, str(error))
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
            case Record(name, use, body):
                return await self._write(held, name, use, body)
            case Await():
                return await self._await(held, request)

    async def _recall(self, held: Held) -> list[Entry]:
        # Nobody has run it before: there is nothing to be read.
        if held.claimed.job.attempt <= 1:
            return []
        return entries_of(await all_events(self._store, held.claimed.job.id))

    async def _write(self, held: Held, name: str, use: int, body: bytes | None) -> Reply:
        command = c.Step(
            actor=held.actor,
            request_id=mint_request(),
            name=name,
            use=use,
            started=body is None,
            # A child process may have written it: it is not trusted to have checked it.
            body=None if body is None else check_body(body, f"the result of step {name!r}"),
        )
        return _told(await self._desk.ask(held, command))

    async def _await(self, held: Held, request: Await) -> Reply:
        """Consume the signal if it is there, else park; whichever the ledger allows."""
        until = None if request.seconds is None else After(seconds(request.seconds))
        for _ in range(TRIES):
            pending = [one.rev for one in held.record.signals if one.name == request.signal]
            command: c.Command = (
                c.Step(
                    actor=held.actor,
                    request_id=mint_request(),
                    name=request.signal,
                    use=request.use,
                    consumes=request.signal,
                )
                if pending
                else c.Wait(
                    actor=held.actor,
                    request_id=mint_request(),
                    signal=request.signal,
                    until=until,
                )
            )
            refusal = await self._desk.ask(held, command)
            if refusal is None:
                return await self._signalled(held, pending[0]) if pending else Parked()
            if refusal.code not in ("signal_pending", "no_signal"):
                return _told(refusal)
        return Refused("busy", f"signals {request.signal!r} came and went {TRIES} times meanwhile")

    async def _signalled(self, held: Held, rev: int) -> Reply:
        """Read what a signal brought."""
        events = await self._store.events(held.claimed.job.id, after=rev - 1, limit=1)
        return Signalled((events[0].body if events else None) or b"null")


def _told(refusal: Refusal | None) -> Reply:
    return Written() if refusal is None else Refused(refusal.code, refusal.message)


def entries_of(events: Sequence[LoggedEvent]) -> list[Entry]:
    """List what a job's history remembers of durable calls, in order."""
    bodies = {event.rev: event.body for event in events}
    waits: Counter[str] = Counter()
    found: dict[tuple[str, str, int], Entry] = {}
    waiting = ""
    for event in events:
        facts = event.facts
        entry: Entry | None = None
        if event.type is EventType.WAITING:
            waiting = facts.wait_for or ""
        elif event.type is EventType.WAIT_COMPLETED:
            waits[waiting] += 1
            body = None if facts.consumed is None else bodies.get(facts.consumed)
            entry = Entry(
                kind="wait", name=waiting, use=waits[waiting], timed_out=facts.timer, body=body
            )
        elif event.type is EventType.STEP_COMPLETED and facts.consumed is not None:
            waits[facts.step or ""] += 1
            entry = Entry(
                kind="wait",
                name=facts.step or "",
                use=waits[facts.step or ""],
                body=bodies.get(facts.consumed),
            )
        elif event.type in (EventType.STEP_STARTED, EventType.STEP_COMPLETED):
            entry = Entry(
                kind="step",
                name=facts.step or "",
                use=facts.step_use or 1,
                begun_only=event.type is EventType.STEP_STARTED,
                body=event.body,
            )
        if entry is not None:
            found[entry.kind, entry.name, entry.use] = entry
    return list(found.values())
