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

from holdfast.context import Context
from holdfast.lifecycle.commands import Command, Start
from holdfast.lifecycle.job import Actor, Job, Refusal
from holdfast.lifecycle.states import OWNED, Role, State
from holdfast.ports import Claimed
from holdfast.tasks import Task

_LOCK = threading.Lock()
"""Over every record of the process: held for a comparison and an assignment."""

NOBODY: dict[int, asyncio.Future[Refusal | None]] = {}
"""Shared by all jobs that nobody asks about, and always empty."""
START = Start(actor=Actor(Role.OWNER, "whoever holds the job"))
"""Stands for a start until it is written: only then is it known how long ago it was."""


class Held:
    """One claimed job. Belongs to the worker's event loop, except `learn` and `proven_until`."""

    __slots__ = (
        "_waiters",
        "actor",
        "asked",
        "attempt_task",
        "begun_at",
        "claimed",
        "claimed_at",
        "commands",
        "context",
        "deadline_at",
        "gone",
        "in_flight",
        "killed_at",
        "listed",
        "proven_rev",
        "proven_until",
        "rebases",
        "record",
        "stop_reason",
        "substituted",
        "task",
        "unkillable",
        "unsure_since",
    )

    def __init__(
        self, claimed: Claimed, owner: str, asked_at: float, task: Task[Any, Any] | None
    ) -> None:
        """Hold a job claimed by a request that was sent at `asked_at`, by the monotonic clock."""
        record = claimed.job
        self.claimed = claimed
        self.claimed_at = time.monotonic()
        self.record: Job = record
        self.actor = Actor(Role.OWNER, owner, record.attempt)
        self.task = task
        # From when the request was sent: a slow reply must not stretch the lease.
        self.proven_until = asked_at + record.policy.lease / 1e6
        self.proven_rev = record.rev
        self.deadline_at = _deadline(record, self.claimed_at)
        """The job's deadline by the monotonic clock."""
        self.commands: list[Command] = []
        self.asked: dict[int, asyncio.Future[Refusal | None]] = NOBODY
        """Who waits to hear what became of a command, by the command's identity."""
        self.in_flight = 0
        """How many of the commands the commit under way carries."""
        self.unsure_since: int | None = None
        """The revision after which an earlier commit of what is posted may have landed."""
        self.listed = False
        self.rebases = 0
        self.begun_at = 0.0
        self.context: Context | None = None
        self.attempt_task: asyncio.Task[None] | None = None
        self.substituted = False
        """What it was to end with could not be written, and was replaced by saying that."""
        self.stop_reason: str | None = None
        self.killed_at = 0.0
        self.unkillable = False
        self.gone = False
        """It ended, was given back, or was lost: nothing more is said of it."""
        self._waiters: list[asyncio.Future[None]] = []

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
            self._waiters.append(waiter)
            await waiter

    def tell_confirmed(self) -> None:
        """Wake those who wait for what was posted."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def start_command(self) -> Start:
        """Say that the handler began, when it really did."""
        ago = int((time.monotonic() - self.begun_at) * 1e6)
        # A start that waited long for its commit says at worst that it began later than it did:
        # else its lease would be over before it is written.
        return Start(actor=self.actor, ago=min(ago, self.record.policy.running_lease // 2))


def _deadline(record: Job, answered_at: float) -> float | None:
    # The claim was written at `updated_at` by the store's clock, before it was answered: counted
    # from then, a job is never ended early, however long the claim took.
    if record.deadline_at is None:
        return None
    return answered_at + (record.deadline_at - record.updated_at) / 1e6
