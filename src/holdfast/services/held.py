"""A job that this worker holds: the record as it was last confirmed, and what is still to be said.

The desk and the keeper both write to the job, each from its own thread; whatever either learns of
the record goes through here, and an older record never replaces a newer one.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from holdfast.context import Context
from holdfast.lifecycle.commands import Command, Start
from holdfast.lifecycle.job import Actor, Job, Refusal
from holdfast.lifecycle.states import OWNED, Role, State
from holdfast.ports import Claimed
from holdfast.tasks import Task

_LOCK = threading.Lock()
"""Over every record of the process: held for a comparison and an assignment."""

START = Start(actor=Actor(Role.OWNER, "whoever holds the job"))
"""Stands for a start until it is written: only then is it known how long ago it was."""


class Held(Struct, eq=False, gc=False):
    """One claimed job. Belongs to the worker's event loop, except `learn` and `proven_until`.

    The garbage collector does not know of it: its walks would cost more than the job. What it makes
    a circle with (its task, its context) is let go when the attempt ends.
    """

    claimed: Claimed
    record: Job
    actor: Actor
    task: Task[Any, Any] | None
    claimed_at: float
    proven_until: float
    proven_rev: int
    deadline_at: float | None
    """The job's deadline by the monotonic clock."""
    commands: list[Command] = []
    asked: dict[int, asyncio.Future[Refusal | None]] | None = None
    """Who waits to hear what became of a command, by the command's identity."""
    in_flight: int = 0
    """How many of the commands the commit under way carries."""
    unsure_since: int | None = None
    """The revision after which an earlier commit of what is posted may have landed."""
    listed: bool = False
    rebases: int = 0
    begun_at: float = 0.0
    context: Context | None = None
    attempt_task: asyncio.Task[None] | None = None
    waited: bool = False
    """Its handler has given way to others."""
    substituted: bool = False
    """What it was to end with could not be written, and was replaced by saying that."""
    stop_reason: str | None = None
    killed_at: float = 0.0
    unkillable: bool = False
    gone: bool = False
    """It ended, was given back, or was lost: nothing more is said of it."""
    waiters: list[asyncio.Future[None]] | None = None
    """Who waits until all that was posted is written."""

    @property
    def lease_seconds(self) -> float:
        """How long the lease is that a renewal would grant now."""
        policy = self.record.policy
        running = self.record.state is State.RUNNING
        return (policy.running_lease if running else policy.lease) / 1e6

    @property
    def shortest_lease_seconds(self) -> float:
        """How long the shorter of its two leases is: a start may cut a claim's short any time."""
        policy = self.record.policy
        return min(policy.running_lease, policy.lease) / 1e6

    @property
    def mine(self) -> bool:
        """Whether the record, as last seen, is still held by this attempt."""
        record = self.record
        return (
            record.state in OWNED
            and record.owner == self.actor.name
            and record.attempt == self.actor.attempt
        )

    def learn(self, record: Job) -> None:
        """Take note of a record, unless a newer one is known. From any thread."""
        with _LOCK:
            if record.rev > self.record.rev:
                self.record = record

    def prove(self, until: float, rev: int) -> None:
        """Take note of the lease that a revision granted. From any thread.

        It replaces the one before, also where it is shorter: a start cuts a claim's lease short.
        """
        with _LOCK:
            if rev > self.proven_rev:
                self.proven_until, self.proven_rev = until, rev

    def answer(self, commands: Iterable[Command], refusal: Refusal | None) -> None:
        """Tell whoever asked for commands that they are written, or why they are not."""
        if self.asked:
            for command in commands:
                asker = self.asked.pop(id(command), None)
                if asker is not None and not asker.done():
                    asker.set_result(refusal)

    async def confirmed(self) -> None:
        """Wait until all that was posted for it is written, or it is gone."""
        if self.commands and not self.gone:
            waiter = asyncio.get_running_loop().create_future()
            self.waiters = [*(self.waiters or ()), waiter]
            await waiter

    def tell_confirmed(self) -> None:
        """Wake those who wait for what was posted."""
        waiters, self.waiters = self.waiters, None
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    def start_command(self, now: float) -> Start:
        """Say that the handler began, when it really did; `now` is by the monotonic clock."""
        ago = int((now - self.begun_at) * 1e6)
        # A start that waited long for its commit says at worst that it began later than it did:
        # else its lease would be over before it is written.
        return Start(actor=self.actor, ago=min(ago, self.record.policy.running_lease // 2))


def hold(claimed: Claimed, actor: Actor, asked_at: float, task: Task[Any, Any] | None) -> Held:
    """Hold a job claimed by a request that was sent at `asked_at`, by the clock of leases."""
    record, now = claimed.job, time.monotonic()
    return Held(
        claimed,
        record,
        actor,
        task,
        now,
        # From when the request was sent: a slow reply must not stretch the lease.
        asked_at + record.policy.lease / 1e6,
        record.rev,
        _deadline(record, now),
    )


def _deadline(record: Job, answered_at: float) -> float | None:
    # The claim was written at `updated_at` by the store's clock, before it was answered: counted
    # from then, a job is never ended early, however long the claim took.
    if record.deadline_at is None:
        return None
    return answered_at + (record.deadline_at - record.updated_at) / 1e6
