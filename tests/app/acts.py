"""What tests of the API do: a store that counts or fails, and a worker's part played by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from holdfast import Context, Holdfast, JobHandle
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.alike import AlikeJobs
from holdfast.lifecycle.payload import Body
from holdfast.lifecycle.record import Change, Draft, JobId, NewJob
from holdfast.lifecycle.states import State
from holdfast.ports.models import Claimed, Outcome, SubmitOutcome
from holdfast.ports.store import Store
from holdfast.tasks.context import JobFacts
from holdfast.testing.factories import CONTROL, owner_of
from holdfast.testing.store_actions import WAYS_OUT, claim_one, do
from holdfast.wiring import make_store, read_address


class Watched:
    """A store whose calls are counted; `before` and `after` may hold a submit up, or fail it."""

    def __init__(self, store: Store) -> None:
        """Let everything through."""
        self._store = store
        self.batches: list[int] = []
        self.looks: list[int] = []
        self.commits: list[int] = []
        self.opening: Callable[[], Any] | None = None
        self.before: Callable[[Sequence[NewJob]], Any] | None = None
        self.after: Callable[[Sequence[NewJob]], Any] | None = None
        self.committing: Callable[[Sequence[Change]], Any] | None = None
        self.committed: Callable[[Sequence[Change]], Any] | None = None
        self.looking: Callable[[Sequence[JobId]], Any] | None = None

    def __getattr__(self, name: str) -> Any:
        """All else is the store's."""
        return getattr(self._store, name)

    async def open(self) -> None:
        """Open, or do as told."""
        await (self._store.open if self.opening is None else self.opening)()

    async def submit(
        self, jobs: Sequence[NewJob], *, await_keys: bool = True
    ) -> list[SubmitOutcome]:
        """Count, and do as told."""
        self.batches.append(len(jobs))
        if self.before is not None:
            await self.before(jobs)
        outcomes = await self._store.submit(jobs, await_keys=await_keys)
        if self.after is not None:
            await self.after(jobs)
        return outcomes

    async def submit_alike(self, jobs: AlikeJobs) -> int | None:
        """Count, and do as told."""
        self.batches.append(len(jobs))
        if self.before is not None:
            await self.before(jobs.expand())
        now = await self._store.submit_alike(jobs)
        if self.after is not None:
            await self.after(jobs.expand())
        return now

    async def get(self, ids: Sequence[Any], **wishes: Any) -> Any:
        """Count, and do as told."""
        self.looks.append(len(ids))
        if self.looking is not None:
            await self.looking(ids)
        return await self._store.get(ids, **wishes)

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        """Count, and do as told."""
        self.commits.append(len(changes))
        if self.committing is not None:
            await self.committing(changes)
        outcomes = await self._store.commit(changes)
        if self.committed is not None:
            await self.committed(changes)
        return outcomes


def watched_app(url: str, **settings: Any) -> tuple[Holdfast, Watched]:
    """Make an app whose store is watched."""
    watched = Watched(make_store(read_address(url)))
    store: Any = watched
    return Holdfast(url, store=lambda: store, **settings), watched


class Gate:
    """Holds calls of a store up until it is opened, and tells that one came."""

    def __init__(self) -> None:
        """Begin closed."""
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def __call__(self, sent: Sequence[NewJob] | Sequence[Change]) -> None:
        """Wait."""
        self.reached.set()
        await self.opened.wait()


async def taken(app: Holdfast, job: JobHandle[Any]) -> Claimed:
    """Claim a job as a worker would."""
    claimed = await claim_one(await app.store(), job.record.queue, capabilities=job.record.needs)
    assert claimed.job.id == job.record.id
    return claimed


async def end(
    app: Holdfast,
    job: JobHandle[Any],
    state: State,
    command: Callable[[Draft], c.Command] | None = None,
) -> None:
    """Lead a job through a worker's hands to its end."""
    store = await app.store()
    record = (await taken(app, job)).job
    running = await do(store, record, c.Start(actor=owner_of(record)))
    if state is State.CANCELLED:
        running = await do(store, running, c.RequestCancel(actor=CONTROL, reason="enough"))
    await do(store, running, (command or WAYS_OUT[state])(running))


class NoLink:
    """A context's link to a worker that is not there."""

    def progress(self, body: Body) -> None:
        """Nobody listens."""

    def ask(self, request: Any, answer: Any) -> None:
        """No handler here makes durable calls."""

    def heartbeat(self) -> None:
        """Nobody listens."""

    def log(self, level: int, line: str) -> None:
        """Nobody listens."""


def context(**facts: Any) -> Context:
    """Show a handler's context."""
    given: dict[str, Any] = {
        "id": "parent", "task": "t", "queue": "default", "tenant": "default", "created_at": 0,
    }  # fmt: skip
    return Context(JobFacts(**given | facts), NoLink(), attempt=1)
