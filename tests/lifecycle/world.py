"""A world with one job in it, and everything that can happen next: what `search` explores.

Two workers, a reconciler, a canceller and a signaller share one job in a model store. The law is
the real one (`decide`, `rebase`, `has_landed`, `apply`); the store guards what the databases guard,
and each guard can be switched off. A reply may be lost after its commit landed.

One step is one visit to the store. What an actor does between two visits touches nothing shared, so
nothing is lost by not interleaving it; and one that dies is one that is never chosen again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, TypeAlias

from msgspec.structs import replace

from holdfast.lifecycle import commands as c
from holdfast.lifecycle import rebase as rebasing
from holdfast.lifecycle.decide import decide
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.record import Actor, Change, Job, LoggedEvent, Refusal, Unchanged
from holdfast.lifecycle.states import OWNED, Role, State
from holdfast.lifecycle.times import SECOND, After
from tests.lifecycle import promises
from tests.lifecycle.factories import dead_letter, new_job
from tests.lifecycle.histories import BIRTH, stamped_event, stamped_record
from tests.lifecycle.promises import Memory, Written

TICK = 30 * SECOND
"""Long enough for every lease to pass: a tick is the expiry of all that was granted before it."""
GUARDS = frozenset({"rev", "lease", "freeze", "request"})
"""What the model store checks: the compare-and-set, the live lease of an owner's write, the frozen
columns of a terminal row, and the unique index on the request_id of control commands."""


class Size(NamedTuple):
    """How much may happen. The number of states grows fast with each."""

    depth: int = 12
    claims: int = 2
    beats: int = 1
    sweeps: int = 3
    cancels: int = 1
    signals: int = 1
    ticks: int = 2
    lost_replies: int = 1
    max_attempts: int = 2
    deadline_ticks: int = 2
    takeovers: int = 0
    """How often the first worker may die with the host's lock, and the second gets it."""
    retakes: int = 0
    """How often a worker may take back what it held when its lease passed, as a bus does."""


class Parcel(NamedTuple):
    """What is under way to the store: a command, and the changes that it was decided to be.

    Without changes its sender was told nothing and will ask again from the beginning.
    """

    command: c.Command
    changes: tuple[Change, ...] = ()


class Party(NamedTuple):
    """One actor: what it still may do, what it knows, and what it has under way."""

    name: str
    left: int
    """Claims, sweeps, cancels or signals that it may still begin."""
    beats: int = 0
    sent: int = 0
    known: Job | None = None
    """A worker's last confirmed record of the job it holds."""
    parcel: Parcel | None = None
    dead: bool = False
    """Its process ended: what it has under way may still arrive, and it learns of nothing."""


class World(NamedTuple):
    """All there is: the store (record, log, clock), an observer's memory, and the actors."""

    job: Job
    log: tuple[LoggedEvent, ...]
    now: int
    memory: Memory
    ticks: int
    lost_replies: int
    takeovers: int
    retakes: int
    w1: Party
    w2: Party
    sweep: Party
    ann: Party
    bob: Party

    def having(self, party: Party) -> World:
        """Replace an actor."""
        changed: dict[str, Any] = {party.name: party}
        return self._replace(**changed)


Verdict: TypeAlias = Literal["accepted", "stale", "lease_lost", "frozen", "repeated"]
Step: TypeAlias = tuple[str, World]


class Broken(Exception):
    """A promise does not hold in some reachable state."""

    def __init__(self, step: str, problem: str) -> None:
        """Name the step that broke it."""
        super().__init__(f"{step}: {problem}")


class Store:
    """A model of the databases: it decides nothing, it only guards. One serves all worlds."""

    def __init__(self, guards: frozenset[str] = GUARDS) -> None:
        """Choose what is checked."""
        self.guards = guards

    def commit(self, world: World, name: str, parcel: Parcel) -> tuple[Verdict, World]:
        """Compare and set; a fold is written whole or not at all."""
        first = parcel.changes[0]
        if "request" in self.guards and _is_known_request(world, parcel.command):
            return "repeated", world
        if "rev" in self.guards and first.record.rev != world.job.rev:
            return "stale", world
        lease = world.job.lease_expires_at
        if "lease" in self.guards and first.fenced and (lease is None or lease <= world.now):
            return "lease_lost", world
        if "freeze" in self.guards and _thaws(world.job, parcel.changes[-1]):
            return "frozen", world
        for change in parcel.changes:
            world = self._write(world, name, parcel.command, change)
        insist(f"{name} {parcel.command.operation}", promises.sleeping_through(world.job))
        return "accepted", world

    def claim(self, world: World, name: str, claim: c.Claim) -> World | None:
        """Lock the row and apply the claim edge, in one step as the databases do."""
        decision = decide(world.job, claim)
        if not isinstance(decision, Change):
            return None
        return self._write(world, name, claim, decision)

    def _write(self, world: World, name: str, command: c.Command, change: Change) -> World:
        last, rev = world.job.updated_at, world.job.rev + 1
        event = stamped_event(change.event, world.now, last)
        job = stamped_record(change.next, world.now, last)
        if event.rev != rev:
            # Only without the rev check: an UPDATE that says no more than `rev = rev + 1`.
            event, job = replace(event, rev=rev), replace(job, rev=rev)
        log = (*world.log, event)
        memory = world.memory.having_seen(event)
        written = Written(world.job, log, job, command, world.now)
        insist(
            f"{name} {command.operation}", promises.broken_promise(written, world.memory, memory)
        )
        return world._replace(job=job, log=log, memory=memory)


def _is_known_request(world: World, command: c.Command) -> bool:
    return command.actor.role is Role.CONTROL and find_request(world, command) is not None


def find_request(world: World, command: c.Command) -> LoggedEvent | None:
    """Look for the event that a request made."""
    return next((event for event in world.log if event.request_id == command.request_id), None)


def _thaws(job: Job, change: Change) -> bool:
    frozen = [name for name in promises.FINAL if name != "finished_at"]
    return job.terminal and any(getattr(job, n) != getattr(change.next, n) for n in frozen)


def insist(step: str, problem: str | None) -> None:
    """Stop the search where a promise is broken."""
    if problem is not None:
        raise Broken(step, problem)


class Model:
    """Everything that can happen next, in any world."""

    def __init__(self, size: Size, guards: frozenset[str] = GUARDS) -> None:
        """Choose how much may happen and what the store checks."""
        self.size = size
        self.store = Store(guards)

    def beginning(self) -> World:
        """One queued job, and nobody has done anything yet."""
        size = self.size
        policy = Policy(max_attempts=size.max_attempts, lease=TICK, heartbeat=TICK // 2)
        new = new_job(policy=policy, deadline_at=BIRTH + size.deadline_ticks * TICK)
        job = stamped_record(new.record, BIRTH, BIRTH)
        return World(
            job=job,
            log=(stamped_event(new.event, BIRTH, BIRTH),),
            now=BIRTH,
            memory=Memory(derived=job),
            ticks=size.ticks,
            lost_replies=size.lost_replies,
            takeovers=size.takeovers,
            retakes=size.retakes,
            w1=Party("w1", size.claims, size.beats),
            w2=Party("w2", size.claims, size.beats),
            sweep=Party("sweep", size.sweeps),
            ann=Party("ann", size.cancels),
            bob=Party("bob", size.signals),
        )

    def steps(self, world: World) -> Iterator[Step]:
        """Let each actor do each thing it can do now, or let time pass."""
        if world.ticks and not world.job.terminal:
            yield "tick", world._replace(now=world.now + TICK, ticks=world.ticks - 1)
        yield from self._worker(world, world.w1)
        # The workers are alike: without loss, the first one to claim is called w1.
        if world.job.attempt:
            yield from self._worker(world, world.w2)
        yield from self._host(world)
        yield from self._sweeper(world, world.sweep)
        yield from self._client(world, world.ann)
        yield from self._client(world, world.bob)

    def _worker(self, world: World, party: Party) -> Iterator[Step]:
        """Claim when idle; when holding, wish for anything; with a parcel under way, send it."""
        if party.parcel is not None:
            if isinstance(party.parcel.command, c.Claim):
                yield _claim_again(world, party, party.parcel.command)
            else:
                yield from self._send(world, party, party.parcel)
        elif party.known is None:
            yield from self._claim(world, party)
        else:
            for command in _wishes(party, party.known):
                decision = decide(party.known, command)
                if isinstance(decision, Change):
                    asking = party._replace(
                        sent=party.sent + 1,
                        beats=party.beats - isinstance(command, c.Heartbeat),
                    )
                    yield from self._send(world, asking, Parcel(command, (decision,)))
            yield from self._retake(world, party, party.known)

    def _host(self, world: World) -> Iterator[Step]:
        """The first worker dies, and the second, which gets the lock, answers for its job."""
        job, heir = world.job, world.w2
        if not world.takeovers or job.owner != "w1" or heir.parcel or heir.known:
            return
        died = world.w1._replace(left=0, beats=0, known=None, dead=True)
        after = world._replace(takeovers=world.takeovers - 1, w1=died)
        # Its attempt tells `_settled` that it holds what it adopted.
        actor = Actor(Role.HOST, heir.name, job.attempt)
        answers: tuple[c.Command, ...] = (
            c.Adopt(actor=actor, request_id=_request(heir)),
            c.Lose(actor=actor, request_id=_request(heir), error_code="lost", gone=True),
        )
        for command in answers:
            decision = decide(job, command)
            assert isinstance(decision, Change)
            parcel = Parcel(command, (decision,))
            asking = heir._replace(sent=heir.sent + 1, parcel=parcel)
            yield f"w1 dies, w2 reads: {command.operation}", after.having(asking)

    def _retake(self, world: World, party: Party, known: Job) -> Iterator[Step]:
        """Take back under one's own name what was held when its lease passed."""
        if not world.retakes or is_live(known, world.now):
            return
        actor = Actor(Role.BUS, party.name, known.attempt)
        command = c.Adopt(actor=actor, request_id=_request(party), as_of=world.now)
        decision = decide(known, command)
        if isinstance(decision, Change):
            asking = party._replace(sent=party.sent + 1)
            spent = world._replace(retakes=world.retakes - 1)
            yield from self._send(spent, asking, Parcel(command, (decision,)))

    def _claim(self, world: World, party: Party) -> Iterator[Step]:
        if not party.left:
            return
        claim = c.Claim(actor=Actor(Role.WORKER, party.name), request_id=_request(party))
        after = self.store.claim(world, party.name, claim)
        if after is None:
            return
        asked = party._replace(left=party.left - 1, sent=party.sent + 1)
        yield f"{party.name} claims", after.having(asked._replace(known=after.job))
        if world.lost_replies:
            told_nothing = asked._replace(parcel=Parcel(claim))
            yield f"{party.name} claims, reply lost", _losing_reply(after, told_nothing)

    def _send(self, world: World, party: Party, parcel: Parcel) -> Iterator[Step]:
        """Visit the store with a change that was decided on what the sender knew."""
        verdict, after = self.store.commit(world, party.name, parcel)
        label = f"{party.name} {parcel.command.operation} ({verdict})"
        match verdict:
            case "accepted":
                yield label, _told(after, party, parcel.command)
                if world.lost_replies:
                    kept = parcel if _remembers(party) else Parcel(parcel.command)
                    yield f"{label}, reply lost", _losing_reply(after, party._replace(parcel=kept))
            case "repeated":
                yield label, _told(after, party, parcel.command)
            case "stale":
                yield label, _after_lost_race(world, party, parcel)
            case "lease_lost" | "frozen":
                yield label, world.having(party._replace(known=None, parcel=None))

    def _sweeper(self, world: World, party: Party) -> Iterator[Step]:
        """Read what is due and decide; then, at another time, commit."""
        if party.parcel is not None:
            yield from self._send(world, party, party.parcel)
        elif party.left:
            for command in _dues(world, _request(party)):
                decision = decide(world.job, command)
                if isinstance(decision, Change):
                    parcel = Parcel(command, (decision,))
                    asking = party._replace(left=party.left - 1, sent=party.sent + 1, parcel=parcel)
                    yield f"sweep reads: {command.operation}", world.having(asking)

    def _client(self, world: World, party: Party) -> Iterator[Step]:
        """Read and decide; commit at another time; told nothing, ask again with the same id."""
        if party.parcel is not None and party.parcel.changes:
            yield from self._send(world, party, party.parcel)
        elif party.parcel is not None or party.left:
            again = party.parcel.command.request_id if party.parcel else None
            parcel = _intervention(world, party, again or _request(party))
            if parcel is not None:
                spent = 0 if again else 1
                asking = party._replace(
                    left=party.left - spent, sent=party.sent + spent, parcel=parcel
                )
                yield f"{party.name} reads: {parcel.command.operation}", world.having(asking)


def _request(party: Party) -> str:
    return f"{party.name}-{party.sent + 1}"


def as_owner(party: Party, job: Job) -> Actor:
    """Speak as a worker does that believes to hold the job."""
    return Actor(Role.OWNER, party.name, job.attempt)


def _remembers(party: Party) -> bool:
    """Workers and sweeps repeat the very change; a client's repeated call reads anew."""
    return party.name in ("w1", "w2", "sweep")


def _losing_reply(world: World, party: Party) -> World:
    return world.having(party)._replace(lost_replies=world.lost_replies - 1)


def _told(world: World, party: Party, command: c.Command) -> World:
    """The sender learns that its write was accepted."""
    problem = promises.false_acknowledgement(world.log, command)
    insist(f"{party.name} is answered", problem)
    return _settled(world, party, command)


def _settled(world: World, party: Party, command: c.Command) -> World:
    """The sender knows the record as it is now; a worker goes on while it holds the job."""
    actor, job = command.actor, world.job
    holds = (job.owner, job.attempt) == (actor.name, actor.attempt)
    known = job if holds and not party.dead else None
    return world.having(party._replace(known=known, parcel=None))


def _claim_again(world: World, party: Party, claim: c.Claim) -> Step:
    """A repeated claim request returns its claim while it is current, else lease_lost."""
    event = find_request(world, claim)
    assert event is not None
    job = world.job
    current = (job.owner, job.attempt) == (party.name, event.attempt)
    known = job if current and not party.dead else None
    return f"{party.name} claims again", world.having(party._replace(known=known, parcel=None))


def _after_lost_race(world: World, party: Party, parcel: Parcel) -> World:
    """A lost compare-and-set: it had landed, or is decided anew, or the sender is fenced."""
    command, first = parcel.command, parcel.changes[0]
    if party.dead:
        return world.having(party._replace(parcel=None))
    index = first.event.rev - 1
    if rebasing.has_landed(first, world.log[index] if index < len(world.log) else None):
        return _told(world, party, command)
    if not _remembers(party):
        again = _intervention(world, party, command.request_id or "")
        return world.having(party._replace(parcel=again))
    decision = rebasing.rebase(world.job, command)
    match decision:
        case Change():
            known = world.job if party.known else None
            moved = Parcel(command, (decision,))
            return world.having(party._replace(known=known, parcel=moved))
        case Unchanged():
            problem = promises.false_repeat(world.job, command)
            insist(f"{party.name} is answered", problem)
            return _settled(world, party, command)
        case Refusal():
            return _settled(world, party, command)


def _wishes(party: Party, job: Job) -> Iterator[c.Command]:
    """Whatever a worker may want with a job that it believes to hold."""
    actor, request_id = as_owner(party, job), _request(party)
    yield c.Start(actor=actor, request_id=request_id)
    if party.beats:
        yield c.Heartbeat(actor=actor, request_id=request_id)
    result = f'"{party.name} {job.attempt}"'.encode()
    yield c.Complete(actor=actor, request_id=request_id, body=result)
    yield c.Fail(actor=actor, request_id=request_id, error_code="boom")
    yield c.Retry(actor=actor, request_id=request_id, error_code="boom")
    if not job.releases:
        yield c.Release(actor=actor, request_id=request_id)
    if any(signal.name == "go" for signal in job.signals):
        yield c.Step(actor=actor, request_id=request_id, name="wait", consumes="go")
    else:
        yield c.Wait(actor=actor, request_id=request_id, signal="go", until=After(TICK))
    if job.cancel_requested:
        yield c.Cancel(actor=actor, request_id=request_id)


def _dues(world: World, request_id: str) -> Iterator[c.Command]:
    """What a sweep finds to be due, by the clock as it reads it."""
    job, now = world.job, world.now
    actor = Actor(Role.RECONCILER, "sweep")
    if job.state in OWNED and (job.lease_expires_at or 0) <= now:
        stall = c.Stall(actor=actor, request_id=request_id, as_of=now)
        lost = isinstance(decide(job, stall), Refusal)
        yield dead_letter(actor, request_id=request_id, as_of=now) if lost else stall
    if job.deadline_at is not None and job.deadline_at <= now:
        yield c.TimeOut(actor=actor, request_id=request_id, as_of=now)
    if job.state is State.WAITING and (job.run_at or 0) <= now:
        yield c.Resume(actor=actor, request_id=request_id, as_of=now)
    if job.state is State.STALLED:
        yield c.Requeue(actor=actor, request_id=request_id)


def _intervention(world: World, party: Party, request_id: str) -> Parcel | None:
    """What the canceller or the signaller makes of the record it reads."""
    actor, job = Actor(Role.CONTROL, party.name), world.job
    command: c.Command
    if party.name == "bob":
        command = c.SignalJob(actor=actor, request_id=request_id, name="go")
    elif job.state in OWNED:
        command = c.RequestCancel(actor=actor, request_id=request_id)
    else:
        command = c.Cancel(actor=actor, request_id=request_id)
    decision = decide(job, command)
    if not isinstance(decision, Change):
        return None
    changes = [decision]
    if decision.next.wait_for == "go":
        resume = decide(decision.next, c.Resume(actor=actor))
        assert isinstance(resume, Change)
        changes.append(resume)
    return Parcel(command, tuple(changes))


def is_live(job: Job, now: int) -> bool:
    """Whether the lease that a record tells of has not passed."""
    return job.lease_expires_at is not None and job.lease_expires_at > now


def holders(world: World) -> list[str]:
    """Who believes that it holds the job, has not said goodbye, and has a live lease."""
    return [
        party.name
        for party in (world.w1, world.w2)
        if party.known is not None
        and party.known.owner == party.name
        and is_live(party.known, world.now)
        and (
            party.parcel is None or isinstance(party.parcel.command, c.Start | c.Heartbeat | c.Step)
        )
    ]
