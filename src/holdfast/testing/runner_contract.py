"""The contract that every runner keeps, as a class of tests with one fixture.

    class TestMyRunner(RunnerContract):
        @pytest_asyncio.fixture
        async def bench(self, tmp_path):
            yield RunnerBench(runner=MyRunner(…), submission=my_jobs)

The runner is given jobs that behave in known ways; see `Behaviour` for what each of them does.
A job holds a lock on its file as long as anything of it runs: that is how a test knows, without
waiting, that it is dead.
"""

from __future__ import annotations

import asyncio
import fcntl
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import pytest
import pytest_asyncio
from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import UnfitResult, ValidationError
from holdfast.lifecycle.payload import Body, decode_body
from holdfast.lifecycle.record import Actor
from holdfast.lifecycle.routes import offer
from holdfast.lifecycle.states import Role
from holdfast.ports.models import Claimed
from holdfast.ports.runner import Runner
from holdfast.ports.store import Store
from holdfast.testing.factories import fresh
from holdfast.testing.store_actions import claim_one, submit_one
from holdfast.wiring import opened, read_address

LIMIT_SECONDS = 60.0
"""How long a test waits for what must come; a healthy runner needs a fraction of it."""
VALUE = 42
"""What a job that returns returns."""


class Behaviour(StrEnum):
    """What a job of the contract does, once it has locked its file.

    Each appends the line `started` to the file first, so that the test sees that it runs.
    """

    RETURNS = "returns"
    """Return `VALUE`."""
    FAILS = "fails"
    """Fail with an error whose text is `failed on purpose`."""
    RUNS_ON = "runs_on"
    """Run until it is killed, in small steps, deaf to any request to stop that it can ignore."""
    STOPS = "stops"
    """Run until it is asked to stop; append the reason as a line, and return `VALUE`."""
    REPORTS = "reports"
    """Report the progress 1, a heartbeat, a line of log `half`, the progress 2; return `VALUE`."""
    UNKEEPABLE = "unkeepable"
    """Return what JSON cannot keep."""
    INVALID = "invalid"
    """A job whose body cannot be read."""
    UNKNOWN = "unknown"
    """A job that names what no runner has."""


class RunnerBench(Struct, kw_only=True):
    """A runner under test, and jobs of its kind."""

    runner: Runner[Any, Any]
    submission: Callable[[Behaviour, Path], dict[str, Any]]
    """Returns the fields of a submission (`kind`, `task`, `body`, …) for a job that behaves so
    and uses this file."""
    value: Any = VALUE
    """What the result of a job that returns is."""
    left: Callable[[], object] = lambda: None
    """Returns what is left of the runner after it was closed; false if nothing is."""


class RecordedAttempt:
    """An attempt that records what its job reports."""

    ends_at: float | None = None

    def __init__(self, claimed: Claimed) -> None:
        self.claimed = claimed
        self.reports: list[Any] = []

    def progress(self, body: Body) -> None:
        """Record it."""
        self.reports.append(decode_body(body))

    def heartbeat(self) -> None:
        """Record it."""
        self.reports.append("heartbeat")

    def log(self, level: int, line: str) -> None:
        """Record it."""
        self.reports.append(line)

    def ask(self, request: Any, answer: Callable[[Any], None]) -> None:
        """Refuse: no job of the contract makes durable calls."""
        raise AssertionError(f"the contract answers no durable call, such as {request}")


class Trial:
    """One attempt under test, as the executor would run it."""

    def __init__(self, runner: Runner[Any, Any], claimed: Claimed, file: Path) -> None:
        """Take a job that uses a file; bind it."""
        self.runner = runner
        self.file = file
        self.attempt = RecordedAttempt(claimed)
        runnable = runner.find(claimed.job)
        assert runnable is not None, f"the runner does not find {claimed.job.task!r}"
        self.call = runner.bind(runnable, self.attempt)
        self._task: asyncio.Task[object] | None = None

    async def run(self) -> object:
        """Run it to its end."""
        return await asyncio.wait_for(self._run(), LIMIT_SECONDS)

    async def _run(self) -> object:
        preparing = self.runner.prepare(self.call)
        if preparing is not None:
            await preparing
        return await self.runner.run(self.call)

    def start(self) -> None:
        """Run it beside the test; see `end`."""
        self._task = asyncio.create_task(self._run())

    async def started(self) -> None:
        """Start it, and wait until its job runs."""
        self.start()
        assert self._task is not None
        async with asyncio.timeout(LIMIT_SECONDS):
            while "started" not in self.lines() and not self._task.done():  # noqa: ASYNC110  a file
                await asyncio.sleep(0.002)
        if self._task.done():
            self._task.result()
        assert self.is_alive(), "a job of the contract locks its file while it runs"

    async def end(self) -> object:
        """Wait until it has ended; return its value, or raise what it raised."""
        assert self._task is not None
        await asyncio.wait([self._task], timeout=LIMIT_SECONDS)
        assert self._task.done(), "the attempt does not end"
        return self._task.result()

    def kill(self) -> None:
        """Kill it, as the worker does."""
        self.runner.stop(self.call, "cancel")
        self.runner.kill(self.call)
        self.cancel()

    async def dead(self) -> None:
        """Wait until a kill has ended it."""
        with suppress(asyncio.CancelledError):
            await self.end()

    async def killed(self) -> None:
        """Kill it, and wait until that has ended it."""
        self.kill()
        await self.dead()

    def cancel(self) -> None:
        """Cancel it once more."""
        assert self._task is not None
        self._task.cancel()

    def lines(self) -> list[str]:
        """Return what the job wrote into its file."""
        return self.file.read_text().splitlines() if self.file.exists() else []

    def is_alive(self) -> bool:
        """Return whether anything of the job runs: it holds the lock on its file."""
        with self.file.open("a") as opened:
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False


class MakeTrial(Protocol):
    """Makes an attempt of a job that behaves in some way, with a file of its own."""

    async def __call__(self, behaviour: Behaviour, name: str = "file") -> Trial:
        """Submit, claim and bind the job."""


class RunnerContract:
    """All that a runner owes. Subclass it and give it a fixture `bench`."""

    pytestmark = pytest.mark.asyncio

    @pytest_asyncio.fixture
    async def ledger(self) -> AsyncIterator[Store]:
        """A store in which the jobs of the contract are submitted and claimed."""
        async with opened(read_address(":memory:")) as store:
            yield store

    @pytest.fixture
    def trial(self, bench: RunnerBench, ledger: Store, tmp_path: Path) -> MakeTrial:
        """What makes attempts of the runner's jobs."""
        return trials(bench, ledger, tmp_path)

    async def test_it_finds_what_it_offers_and_nothing_else(
        self, bench: RunnerBench, ledger: Store, tmp_path: Path
    ) -> None:
        job = (await claimed(ledger, bench, Behaviour.RETURNS, tmp_path / "file")).job
        runnable = bench.runner.find(job)
        assert runnable is not None
        assert runnable.grace_seconds("cancel") >= 0
        assert offer(job.task, job.task_version) in bench.runner.offers()
        assert job.task in {terms.task for terms in bench.runner.published()}
        assert bench.runner.find(replace(job, task_version="another")) is None
        unknown = (await claimed(ledger, bench, Behaviour.UNKNOWN, tmp_path / "file")).job
        assert bench.runner.find(unknown) is None

    async def test_a_job_has_no_effect_before_it_runs(self, trial: MakeTrial) -> None:
        made = await trial(Behaviour.RETURNS)
        preparing = made.runner.prepare(made.call)
        if preparing is not None:
            await preparing
        assert made.lines() == [], "it was only bound and prepared"

    async def test_a_body_that_cannot_be_read_is_refused_before_anything_runs(
        self, trial: MakeTrial, tmp_path: Path
    ) -> None:
        with pytest.raises(ValidationError):
            await trial(Behaviour.INVALID)
        assert not (tmp_path / "file").exists()

    async def test_a_job_runs_once_and_its_value_is_collected(
        self, bench: RunnerBench, trial: MakeTrial
    ) -> None:
        made = await trial(Behaviour.RETURNS)
        value = await made.run()
        assert made.lines() == ["started"]
        actor = Actor(Role.OWNER, "worker-1", 1)
        complete = bench.runner.collect(made.call, value, actor)
        assert (complete.actor, decode_body(complete.body)) == (actor, bench.value)

    async def test_attempts_one_after_the_other_leave_nothing_to_the_next(
        self, trial: MakeTrial
    ) -> None:
        for number in range(1, 4):
            made = await trial(Behaviour.RETURNS)
            await made.run()
            assert made.lines() == ["started"] * number

    async def test_what_a_job_fails_with_is_raised(self, trial: MakeTrial) -> None:
        made = await trial(Behaviour.FAILS)
        with pytest.raises(Exception, match="failed on purpose"):
            await made.run()
        assert made.lines() == ["started"]
        assert not made.is_alive()

    async def test_a_value_that_cannot_be_kept_is_refused(
        self, bench: RunnerBench, trial: MakeTrial
    ) -> None:
        made = await trial(Behaviour.UNKEEPABLE)
        with pytest.raises(UnfitResult):
            bench.runner.collect(made.call, await made.run(), Actor(Role.OWNER, "worker-1", 1))

    async def test_an_attempt_that_is_asked_to_stop_learns_why_and_may_finish(
        self, trial: MakeTrial
    ) -> None:
        made = await trial(Behaviour.STOPS)
        await made.started()
        made.runner.stop(made.call, "cancel")
        made.runner.stop(made.call, "shutdown")
        await made.end()
        assert made.lines() == ["started", "cancel"], "the first reason stands"

    async def test_a_request_to_stop_that_comes_before_the_run_is_kept(
        self, trial: MakeTrial
    ) -> None:
        made = await trial(Behaviour.STOPS)
        made.runner.stop(made.call, "shutdown")
        await made.run()
        assert made.lines() == ["started", "shutdown"]

    async def test_a_killed_attempt_ends_only_once_nothing_of_it_runs(
        self, trial: MakeTrial
    ) -> None:
        made = await trial(Behaviour.RUNS_ON)
        await made.started()
        await made.killed()
        assert not made.is_alive()

    async def test_an_attempt_that_is_killed_before_it_runs_leaves_nothing(
        self, trial: MakeTrial
    ) -> None:
        made = await trial(Behaviour.RUNS_ON)
        made.start()
        await asyncio.sleep(0)
        await made.killed()
        assert not made.is_alive()

    async def test_a_kill_that_is_repeated_ends_no_sooner(self, trial: MakeTrial) -> None:
        made = await trial(Behaviour.RUNS_ON)
        await made.started()
        made.kill()
        for _ in range(3):
            # Once the first has reached the attempt, and may be under way.
            await asyncio.sleep(0)
            made.cancel()
        await made.dead()
        assert not made.is_alive()

    async def test_a_kill_leaves_other_attempts_running(self, trial: MakeTrial) -> None:
        killed, other = await trial(Behaviour.RUNS_ON, "killed"), await trial(Behaviour.STOPS)
        await killed.started()
        await other.started()
        await killed.killed()
        assert other.is_alive()
        other.runner.stop(other.call, "cancel")
        await other.end()
        assert other.lines() == ["started", "cancel"]

    async def test_reports_come_in_order_and_to_their_own_attempt(self, trial: MakeTrial) -> None:
        trials = [await trial(Behaviour.REPORTS, name) for name in ("one", "two")]
        await asyncio.gather(*(made.run() for made in trials))
        for made in trials:
            assert made.attempt.reports == [1, "heartbeat", "half", 2]

    async def test_nothing_is_left_of_a_runner_that_is_closed(
        self, bench: RunnerBench, trial: MakeTrial
    ) -> None:
        await (await trial(Behaviour.RETURNS, "done")).run()
        made = await trial(Behaviour.RUNS_ON)
        await made.started()
        await made.killed()
        await asyncio.wait_for(bench.runner.close(), LIMIT_SECONDS)
        assert not made.is_alive()
        assert not bench.left()


async def claimed(ledger: Store, bench: RunnerBench, behaviour: Behaviour, file: Path) -> Claimed:
    """Submit and claim a job of the bench."""
    fields = bench.submission(behaviour, file)
    job = await submit_one(ledger, **{"queue": fresh("queue"), **fields})
    return await claim_one(ledger, job.queue, capabilities=job.needs)


def trials(bench: RunnerBench, ledger: Store, directory: Path) -> MakeTrial:
    """Return what makes attempts of the runner's jobs, with files in a directory."""

    async def make(behaviour: Behaviour, name: str = "file") -> Trial:
        file = directory / name
        return Trial(bench.runner, await claimed(ledger, bench, behaviour, file), file)

    return make
