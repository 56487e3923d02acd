"""The faults: each is injected again and again, and tells how often it had an effect.

A fault that cannot be seen to have done anything has proven nothing: then the run fails.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Collection
from random import Random
from typing import ClassVar

from holdfast.errors import Refused
from holdfast.flow.redrive import redrive
from holdfast.lifecycle.states import CancelMode, EventType, Letter, State
from holdfast.ports.models import Query
from tests.chaos.front import Front
from tests.crashes.outages import locked
from tests.support.named_points import named_points
from tests.support.postgres import StopMode
from tests.support.proxy import Fault as ProxyFault


class Fault:
    """Something that goes wrong on purpose."""

    name: ClassVar[str]
    effect: ClassVar[str]
    """What counts as its having bitten."""
    engines: ClassVar[Collection[str]] = ("sqlite", "postgres")

    def __init__(self, front: Front, chance: Random) -> None:
        """Aim at a front."""
        self.front = front
        self.chance = chance
        self.injected = 0
        self.bitten = 0

    async def strike(self) -> None:
        """Let it happen once, and make good what must be made good."""
        raise NotImplementedError

    async def look(self) -> None:
        """Count what it had for an effect, where that shows later."""

    async def rest(self, low: float, high: float) -> None:
        """Wait for a random time."""
        await asyncio.sleep(self.chance.uniform(low, high))


class Kill(Fault):
    """SIGKILL."""

    name, effect = "kill -9", "its lease was taken away"

    def __init__(self, front: Front, chance: Random) -> None:
        """Have killed nobody."""
        super().__init__(front, chance)
        self._names: set[str] = set()

    async def strike(self) -> None:
        """Kill one, and start another."""
        victim = await self.front.pick(self.chance)
        self._names.add(victim.name)
        victim.kill()
        self.front.forget(victim)

    async def look(self) -> None:
        """Count those whose jobs a sweep found."""
        self.bitten = len(self._names & await self.front.losers())


class Point(Kill):
    """SIGKILL at a named point."""

    name, effect = "kill at a point", "it died there"

    async def strike(self) -> None:
        """Replace one by another that will die at a point of its way."""
        points = [point for point in named_points() if not point.startswith(("sqlite.", "http."))]
        point = f"{self.chance.choice(points)}:{self.chance.randint(1, 6)}"
        old = await self.front.pick(self.chance)
        old.kill()
        self.front.forget(old)
        before = self.front.exits[-signal.SIGKILL]
        await self.front.fill_up(die_at=point)
        await self.rest(0.5, 1.0)
        await self.front.fill_up()
        self.bitten += self.front.exits[-signal.SIGKILL] > before

    async def look(self) -> None:
        """It was seen at once."""


class Stop(Fault):
    """SIGSTOP past the lease, then SIGCONT."""

    name, effect = "stop and go on", "its lease was taken away while it was stopped"

    def __init__(self, front: Front, chance: Random) -> None:
        """Have stopped nobody."""
        super().__init__(front, chance)
        self._names: set[str] = set()

    async def strike(self) -> None:
        """Stop one for longer than a lease."""
        victim = await self.front.pick(self.chance)
        if not await asyncio.to_thread(victim.suspend):
            return  # a job of its own had just ended it
        self._names.add(victim.name)
        await self.rest(0.7, 1.4)
        victim.resume()

    async def look(self) -> None:
        """Count those whose jobs a sweep found."""
        self.bitten = len(self._names & await self.front.losers())


class Deploy(Fault):
    """SIGTERM under load, and another worker in its place."""

    name, effect = "deploy", "it gave jobs back, and ended in order"

    def __init__(self, front: Front, chance: Random) -> None:
        """Have ended nobody."""
        super().__init__(front, chance)
        self._names: set[str] = set()

    async def strike(self) -> None:
        """End one in order; it must say so."""
        victim = await self.front.pick(self.chance)
        self._names.add(victim.name)
        victim.send(signal.SIGTERM)
        code = await asyncio.to_thread(victim.wait, 60)
        # One that was to die at a point may have come to it, or to a job that ends its worker.
        assert code in (0, 7, -signal.SIGKILL), f"a deploy ended with {code}:\n{victim.said()}"
        self.front.forget(victim)

    async def look(self) -> None:
        """Count those that gave jobs back."""
        released = {event.actor for event in await self.front.events(EventType.RELEASED)}
        self.bitten = len(self._names & released)


class Outage(Fault):
    """The database is away for a while."""

    name, effect = "database away", "jobs were held, or connections cut, meanwhile"

    async def strike(self) -> None:
        """Crash PostgreSQL, or lock the file of SQLite."""
        held = await self.front.held()
        cluster = self.front.cluster
        if cluster is None:
            async with locked(self.front.url):
                await self.rest(0.2, 1.2)
            self.bitten += held > 0
            return
        cut = await asyncio.to_thread(cluster.sql, _BACKENDS)
        mode: StopMode = self.chance.choice(("immediate", "fast"))
        await asyncio.to_thread(cluster.stop, mode)
        await self.rest(0.0, 1.0)
        await asyncio.to_thread(cluster.start)
        self.bitten += int(cut) > 0


_BACKENDS = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'chaos'"


class Cut(Fault):
    """Every connection of the workers is reset."""

    name, effect, engines = "connections reset", "there were some", ("postgres",)

    async def strike(self) -> None:
        """Cut the line."""
        assert self.front.proxy is not None
        self.bitten += await asyncio.to_thread(self.front.proxy.cut) > 0


class Freeze(Fault):
    """The line is dead, and nobody says so."""

    name, effect, engines = "half-open line", "something was held back", ("postgres",)

    async def strike(self) -> None:
        """Forward nothing for a while."""
        assert self.front.proxy is not None
        fault = await asyncio.to_thread(self.front.proxy.freeze)
        await self.rest(0.3, 1.2)
        await asyncio.to_thread(self.front.proxy.thaw)
        self.bitten += fault.bitten


class LostReply(Fault):
    """A statement is done, and its reply is lost."""

    name, effect, engines = "reply lost", "one was", ("postgres",)
    statements: ClassVar[tuple[bytes, ...]] = (b"UPDATE jobs", b"INSERT INTO claims")

    async def strike(self) -> None:
        """Lose the reply to the next commit or claim."""
        assert self.front.proxy is not None
        statement = self.chance.choice(self.statements)
        fault: ProxyFault = await asyncio.to_thread(self.front.proxy.drop_reply_after, statement)
        try:
            await fault.happened(1.0)
        except TimeoutError:
            return
        self.bitten += 1


class CancelOne(Fault):
    """Somebody cancels a job, at any instant of it."""

    name, effect = "cancel", "the job ended, or its owner was asked"

    async def strike(self) -> None:
        """Cancel one of the unfinished."""
        unfinished = await self.front.unfinished()
        if not unfinished:
            return
        handle = await self.front.app.get(self.chance.choice(unfinished))
        try:
            await handle.cancel(hard=self.chance.random() < 0.5)
        except Refused:
            return  # it changed hands again and again meanwhile, which may be
        asked = handle.record.cancel_requested in (CancelMode.SOFT, CancelMode.HARD)
        self.bitten += asked or handle.state is State.CANCELLED


class Redrive(Fault):
    """Somebody sends dead letters on their way again."""

    name, effect = "redrive", "a new job was made"

    async def strike(self) -> None:
        """Redrive one open letter, twice: that is once."""
        page = await self.front.store.find(Query(letter=Letter.OPEN, limit=50))
        if not page.jobs:
            return
        dead = self.chance.choice(page.jobs)
        actor = self.front.app.control
        first, again = [await redrive(self.front.store, dead.id, actor) for _ in range(2)]
        assert first.id == again.id, "one letter was redriven twice"
        self.front.acknowledged.add(first.public_id)
        self.bitten += 1


class Pause(Fault):
    """Somebody pauses the queue and resumes it."""

    name, effect = "pause", "jobs waited meanwhile"

    async def strike(self) -> None:
        """Pause for a moment."""
        await self.front.app.pause("default", reason="chaos")
        try:
            await self.rest(0.1, 0.6)
            counts = await self.front.store.counts()
            self.bitten += any(one.state is State.QUEUED and one.jobs for one in counts)
        finally:
            await self.front.app.resume("default")


class Epoch(Fault):
    """The epoch is raised, as after a restore: every claim is fenced."""

    name, effect = "epoch bump", "there were claims to fence"

    async def strike(self) -> None:
        """Raise it."""
        held = await self.front.held()
        await self.front.store.bump_epoch()
        self.bitten += held > 0


FAULTS: tuple[type[Fault], ...] = (
    Kill,
    Point,
    Stop,
    Deploy,
    Outage,
    Cut,
    Freeze,
    LostReply,
    CancelOne,
    Redrive,
    Pause,
    Epoch,
)
