"""Commands on their way to the store: an `Outbox` for each job, and the queue of those jobs.

Every part of a worker posts; the committer alone takes from the queue, and alone decides what
becomes of what is in an outbox.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Actor, Change, Refusal
from holdfast.lifecycle.states import Role

if TYPE_CHECKING:
    from holdfast.worker.owned_job import OwnedJob

BATCH = 2000
"""Jobs whose commands one commit carries at most."""

START = c.Start(actor=Actor(Role.OWNER, "the owner"))
"""A placeholder for a start until it is decided: only then is it known how long ago it was."""
GONE = Refusal(code="lease_lost", message="the job is no longer this attempt's")

_ALONE = frozenset({c.Heartbeat, c.CorrectTerms})


class Outbox(Struct, eq=False, gc=False):
    """The commands of one job that are not written yet, in order.

    The garbage collector does not track it, as it does not track `OwnedJob`.
    """

    commands: list[c.Command] = []
    in_flight: int = 0
    """How many of the commands the commit under way carries."""
    changes: Sequence[Change] = ()
    """What the commit under way carries."""
    listed: bool = False
    """Whether the job is in the queue."""
    unsure_since: int | None = None
    """The revision after which an earlier commit of these commands may have landed."""
    rebases: int = 0
    """How often its commits lost their compare-and-set in a row."""
    substituted: bool = False
    """The end of the attempt could not be written, and was replaced by a dead letter."""
    asked: dict[int, asyncio.Future[Refusal | None]] | None = None
    """Callers that wait for the outcome of a command, by the command's identity."""
    waiters: list[asyncio.Future[None]] | None = None
    """Callers that wait until nothing is left to be written."""

    def first_to_leave(self) -> list[c.Command]:
        """Return the commands that the next commit carries; some fold with no other."""
        commands = self.commands
        for command in commands:
            if type(command) in _ALONE:
                return commands[: commands.index(command) or 1]
        return commands

    def strike(self, count: int) -> list[c.Command]:
        """Remove commands that are written, and return them."""
        written = self.commands
        if count < len(written):
            written, self.commands = written[:count], written[count:]
        else:
            self.commands = []
        self.in_flight, self.changes = 0, ()
        self.unsure_since = None
        return written

    def answer(self, commands: Iterable[c.Command], refusal: Refusal | None) -> None:
        """Report to the callers of `ask` that commands are written, or why they are not."""
        if self.asked:
            for command in commands:
                caller = self.asked.pop(id(command), None)
                if caller is not None and not caller.done():
                    caller.set_result(refusal)

    async def emptied(self) -> None:
        """Wait until all that was posted is written, or the job is gone."""
        if self.commands:
            waiter = asyncio.get_running_loop().create_future()
            self.waiters = [*(self.waiters or ()), waiter]
            await waiter

    def wake_waiters(self) -> None:
        """Report to the callers of `emptied` that nothing is left."""
        waiters, self.waiters = self.waiters, None
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    def drop(self) -> None:
        """Forget all that was posted: the job is no longer this attempt's."""
        self.answer(self.commands, GONE)
        self.commands.clear()
        self.in_flight = 0
        self.wake_waiters()


class CommitQueue:
    """Jobs with commands to commit, in the order in which they were posted. On one event loop."""

    def __init__(self) -> None:
        self.jobs: list[OwnedJob] = []
        self.batch = BATCH
        self.some = asyncio.Event()
        """Something waits."""
        self.many = asyncio.Event()
        """A full batch waits."""

    def post(self, job: OwnedJob, command: c.Command) -> None:
        """Have a command written, after those already posted for the job."""
        if not job.gone:
            job.outbox.commands.append(command)
            if not job.outbox.listed:
                self.add_job(job)

    def post_progress(self, job: OwnedJob, command: c.Progress) -> None:
        """Have progress written; a report before it that no commit carries yet is replaced."""
        commands = job.outbox.commands
        last = len(commands) - 1
        before = commands[last] if last >= job.outbox.in_flight else None
        if isinstance(before, c.Progress) and not before.unkillable:
            commands[last] = command
        else:
            self.post(job, command)

    async def ask(self, job: OwnedJob, command: c.Command) -> Refusal | None:
        """Have a command written and wait for it; returns why the law does not allow it now.

        Give it a request_id: it then shows whether it was written, even if the reply was lost.
        """
        if job.gone:
            return GONE
        answer: asyncio.Future[Refusal | None] = asyncio.get_running_loop().create_future()
        job.outbox.asked = {**(job.outbox.asked or {}), id(command): answer}
        self.post(job, command)
        return await answer

    def add_job(self, job: OwnedJob) -> None:
        """Have a job's commands committed, unless a commit of them is under way."""
        outbox = job.outbox
        if not outbox.listed and not outbox.in_flight:
            outbox.listed = True
            self.jobs.append(job)
            self.some.set()
            if len(self.jobs) >= self.batch:
                self.many.set()

    def take(self) -> list[OwnedJob]:
        """Take the next batch; a job stays `listed` until its commands are decided."""
        batch, self.jobs = self.jobs[: self.batch], self.jobs[self.batch :]
        return batch

    def put_first(self, jobs: Iterable[OwnedJob]) -> None:
        """Put jobs back ahead of those that came later."""
        later, self.jobs = self.jobs, []
        for job in jobs:
            self.add_job(job)
        self.jobs += later

    def wake_all(self) -> None:
        """Have the committer look at the queue though nothing came."""
        self.some.set()
        self.many.set()
