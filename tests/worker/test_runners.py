"""A kind of job of which the worker knows nothing but its runner: no part asks for a function."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from msgspec.structs import replace

from holdfast.errors import ValidationError
from holdfast.flow.cancel import cancel
from holdfast.flow.command import perform
from holdfast.lifecycle.commands import Complete, Fail
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.record import Actor, Job
from holdfast.lifecycle.states import EventType, Kind, State
from holdfast.lifecycle.terms import TaskTerms
from holdfast.ports.runner import Attempt
from holdfast.ports.store import Store
from holdfast.testing.factories import CONTROL, fresh, owner_of
from holdfast.testing.store_actions import stored, submit_one
from holdfast.wiring import make_store, opened, read_address
from holdfast.worker.runner_table import RunnerTable
from holdfast.worker.worker import Worker
from tests.crashes.waiting import until
from tests.worker.test_worker import LIMIT

ONCE = Policy(max_attempts=1, idempotent=False)


class Offering:
    """Offers what it is told to."""

    def __init__(self, *names: str) -> None:
        self.names = list(names)

    def offers(self) -> Sequence[str]:
        return self.names


def test_offers_of_all_runners_are_sorted_once_until_there_are_more() -> None:
    more: Any = Offering("d", "b")
    table = RunnerTable({Kind.FUNCTION: [Offering("c"), more], Kind.COMMAND: [Offering("a")]})  # type: ignore[list-item]
    offers = table.offers()
    assert offers == ("a", "b", "c", "d")
    assert table.offers() is offers
    more.names.append("aa")
    assert table.offers() == ("a", "aa", "b", "c", "d")


class Program:
    """What a command names."""

    compensated_steps: frozenset[str] = frozenset()

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def grace_seconds(self, reason: str) -> float:
        return 60.0 if reason == "cancel" else 0.0


class CommandRunner:
    """Runs commands that do nothing, and notes in which state their job was at each step."""

    kill_patience_seconds = 2.0
    observes_exits = False

    def __init__(self, store: Store, policy: Policy) -> None:
        self._store = store
        self._policy = policy
        self.steps: list[tuple[str, State]] = []
        self.asked_to_stop = asyncio.Event()
        self.reasons: list[str] = []
        self.killed: list[Attempt] = []
        self.dead: list[Attempt] = []
        self.closed = False

    def offers(self) -> Sequence[str]:
        return ["true", "sleep", "deaf"]

    def published(self) -> Sequence[TaskTerms]:
        return []

    def find(self, job: Job) -> Program | None:
        return Program(self._policy) if job.task in self.offers() else None

    def bind(self, runnable: Program, attempt: Attempt) -> Attempt:
        if attempt.claimed.body == b'"invalid"':
            raise ValidationError("no such option")
        return attempt

    async def prepare(self, attempt: Attempt) -> None:
        await self._note("prepare", attempt)

    async def run(self, attempt: Attempt) -> object:
        try:
            await self._note("run", attempt)
            if attempt.claimed.job.task == "sleep":
                await self.asked_to_stop.wait()
            elif attempt.claimed.job.task == "deaf":
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            assert self.killed == [attempt], "it is killed, and learns of it first"
            await asyncio.sleep(0.05)
            self.dead.append(attempt)
            raise
        return 0

    def stop(self, attempt: Attempt, reason: str) -> None:
        self.reasons.append(reason)
        self.asked_to_stop.set()

    def kill(self, attempt: Attempt) -> None:
        self.killed.append(attempt)

    def collect(self, attempt: Attempt, value: Any, actor: Actor) -> Complete:
        return Complete(actor=actor, exit_code=value)

    async def close(self) -> None:
        self.closed = True

    async def _note(self, step: str, attempt: Attempt) -> None:
        job = await stored(self._store, attempt.claimed.job.id)
        self.steps.append((step, job.state))


@asynccontextmanager
async def command_worker(
    url: str, queue: str, policy: Policy = ONCE
) -> AsyncIterator[tuple[Store, CommandRunner]]:
    """A worker that runs commands and nothing else."""
    address = read_address(url)
    async with opened(address) as store:
        runner = CommandRunner(store, policy)
        async with Worker(
            make_store(address),
            {Kind.COMMAND: [runner]},
            keeper_store=make_store(address),
            queues=[queue],
            tick_seconds=0.05,
            poll_seconds=0.05,
        ):
            yield store, runner
        assert runner.closed


async def submitted(store: Store, queue: str, task: str = "true", **fields: Any) -> Job:
    return await submit_one(
        store, **{"kind": Kind.COMMAND, "task": task, "queue": queue, "policy": ONCE, **fields}
    )


async def ended(store: Store, job: Job) -> Job:
    """Wait until a job has ended, and return it."""

    async def has_ended() -> bool:
        return (await stored(store, job.id)).terminal

    await until(has_ended, "the job to end", limit=LIMIT)
    return await stored(store, job.id)


async def test_a_command_is_prepared_started_run_and_collected(url: str) -> None:
    queue = fresh("queue")
    async with command_worker(url, queue) as (store, runner):
        job = await ended(store, await submitted(store, queue))
    assert (job.state, job.exit_code, job.attempt) == (State.SUCCEEDED, 0, 1)
    assert runner.steps == [("prepare", State.CLAIMED), ("run", State.RUNNING)]


async def test_a_command_that_is_cancelled_has_the_grace_of_its_kind(url: str) -> None:
    queue = fresh("queue")
    async with command_worker(url, queue) as (store, runner):
        job = await submitted(store, queue, "sleep")
        await until(lambda: len(runner.steps) == 2, "it to run", limit=LIMIT)
        await cancel(store, job.id, CONTROL)
        job = await ended(store, job)
    assert job.cancel_requested is not None
    assert job.state is State.SUCCEEDED, "it finished within its grace, and was not killed"
    assert (runner.reasons, runner.killed) == (["cancel"], [])


async def test_a_command_that_is_cancelled_hard_is_killed_at_once(url: str) -> None:
    queue = fresh("queue")
    async with command_worker(url, queue) as (store, runner):
        job = await submitted(store, queue, "deaf")
        await until(lambda: len(runner.steps) == 2, "it to run", limit=LIMIT)
        await cancel(store, job.id, CONTROL, hard=True)
        job = await ended(store, job)
        assert len(runner.dead) == 1, "its end is written once nothing of it runs"
    assert (job.state, runner.reasons) == (State.CANCELLED, ["cancel"])


async def test_a_command_whose_time_is_up_is_killed(url: str) -> None:
    queue = fresh("queue")
    policy = replace(ONCE, timeout=100_000)
    async with command_worker(url, queue, policy) as (store, runner):
        job = await ended(store, await submitted(store, queue, "deaf", policy=policy))
        assert len(runner.dead) == 1
    assert (job.state, job.error_code) == (State.TIMED_OUT, "timeout")
    assert runner.reasons == ["timeout"]


async def test_a_command_that_its_worker_lost_is_killed_and_nothing_more_is_written(
    url: str,
) -> None:
    queue = fresh("queue")
    async with command_worker(url, queue) as (store, runner):
        job = await submitted(store, queue, "deaf")
        await until(lambda: len(runner.steps) == 2, "it to run", limit=LIMIT)
        running = await stored(store, job.id)
        # As another process would: its worker finds a record that is no longer its own.
        await perform(store, job.id, Fail(actor=owner_of(running), error_code="elsewhere"))
        await until(lambda: len(runner.dead) == 1, "it to be dead", limit=LIMIT)
    assert runner.reasons == ["lease_lost"]
    async with opened(read_address(url)) as store:
        job = await stored(store, job.id)
    assert (job.state, job.rev) == (State.FAILED, running.rev + 1)


async def test_a_command_that_cannot_be_bound_is_not_prepared(url: str) -> None:
    queue = fresh("queue")
    async with command_worker(url, queue) as (store, runner):
        job = await ended(store, await submitted(store, queue, body=b'"invalid"'))
    assert (job.state, job.error_code) == (State.DEAD_LETTERED, "validation_failed")
    assert runner.steps == []


async def test_a_job_of_a_kind_without_a_runner_is_released(url: str) -> None:
    queue = fresh("queue")
    async with command_worker(url, queue) as (store, runner):
        job = await submitted(store, queue, kind=Kind.AGENT)

        async def is_released() -> bool:
            return EventType.RELEASED in {one.type for one in await store.events(job.id)}

        await until(is_released, "it to be released", limit=LIMIT)
    assert runner.steps == []
