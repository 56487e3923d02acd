"""The front: a store, worker processes on it, the outside resource, and the way between them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

from holdfast.app.app import Holdfast
from holdfast.lifecycle.record import JobId, LoggedEvent
from holdfast.lifecycle.states import OWNED, TERMINAL, EventType, State
from holdfast.ports.models import EventQuery, Query
from holdfast.ports.store import Store
from holdfast.wiring import migrate, read_address
from tests.crashes.apps import make_app
from tests.support.crew import Crew, Member
from tests.support.postgres import PostgresCluster
from tests.support.proxy import FaultProxy
from tests.support.resource import Resource

SIZE = 2
"""How many workers there are at a time."""
LIVE = tuple(state for state in State if state.code and state not in TERMINAL)
SETTINGS: dict[str, Any] = {
    "tick": "100ms",
    "poll": "50ms",
    "concurrency": 8,
    "grace": "200ms",
    "queues": ["default"],
}


class Front:
    """All that a fault may be aimed at. `store` is the judge's, past every fault on the line."""

    def __init__(
        self,
        url: str,
        crew: Crew,
        *,
        cluster: PostgresCluster | None = None,
        proxy: FaultProxy | None = None,
    ) -> None:
        """Stand before a store; nobody works yet."""
        self.url = url
        self.crew = crew
        self.resource = Resource(crew.effects)
        self.cluster = cluster
        self.proxy = proxy
        self.app: Holdfast = make_app(url)
        self.store: Store
        self.acknowledged: set[str] = set()
        self.exits: Counter[int] = Counter()
        """How worker processes ended that nobody meant to end."""

    @property
    def engine(self) -> str:
        """Which store this is about."""
        return "sqlite" if self.cluster is None else "postgres"

    @property
    def working(self) -> list[Member]:
        """The workers that live and are not leaving."""
        return [member for member in self.crew.members if member.alive and member.name]

    async def pick(self, chance: Random) -> Member:
        """Choose one of the workers; jobs may just have ended them all."""
        while not (working := self.working):
            await self.fill_up()
        return chance.choice(working)

    async def fill_up(self, **more: Any) -> None:
        """Start workers until there are enough."""
        for member in [one for one in self.crew.members if not one.alive and one.name]:
            self.exits[member.process.returncode or 0] += 1
            self.forget(member)
        while len(self.working) < SIZE:
            member = self.crew.start(**{**SETTINGS, **more})
            await asyncio.to_thread(member.wait_ready)
            more = {}

    def forget(self, member: Member) -> None:
        """Let go of one that has ended."""
        member.close()
        self.crew.members.remove(member)

    async def held(self) -> int:
        """Tell how many jobs are in somebody's hands."""
        return sum(count.jobs for count in await self.store.counts() if count.state in OWNED)

    async def unfinished(self) -> list[JobId]:
        """List jobs that have not ended, newest first."""
        page = await self.store.find(Query(states=LIVE, limit=500))
        return [job.id for job in page.jobs]

    async def events(self, kind: EventType) -> list[LoggedEvent]:
        """Read all events of a type."""
        return await self.store.find_events(EventQuery(type=kind.code, limit=100_000))

    async def losers(self) -> set[str]:
        """Name the owners from whom a sweep took a job."""
        names: set[str] = set()
        for kind in (EventType.STALLED, EventType.DEAD_LETTERED, EventType.CANCELLED):
            for event in await self.events(kind):
                if event.facts.last_owner and event.actor.startswith("reconciler:"):
                    names.add(event.facts.last_owner)
        return names


@asynccontextmanager
async def front_on(engine: str, directory: Path) -> AsyncIterator[Front]:
    """Make the front on an engine; everything of it is gone at the end."""
    effects = directory / "effects"
    effects.mkdir()
    with ExitStack() as stack:
        if engine == "sqlite":
            url = str(directory / "jobs.db")
            front = Front(url, stack.enter_context(Crew(url, effects)))
        else:
            cluster = stack.enter_context(PostgresCluster({"fsync": "off"}))
            url = cluster.create_database("chaos")
            proxy = stack.enter_context(FaultProxy("127.0.0.1", cluster.port))
            crew = stack.enter_context(Crew(proxy.url(url), effects))
            front = Front(url, crew, cluster=cluster, proxy=proxy)
        await migrate(read_address(url))
        async with front.app:
            front.store = await front.app.store()
            yield front
