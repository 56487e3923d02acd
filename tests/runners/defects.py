"""Runners that are subtly wrong, each in one way: a wrapper around the runner of functions.

Each names the tests of the contract that must fail on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import Any, ClassVar

from msgspec.structs import replace

from holdfast.lifecycle.commands import Complete
from holdfast.lifecycle.payload import Body
from holdfast.lifecycle.record import Actor, Job
from holdfast.lifecycle.terms import TaskTerms
from holdfast.ports.runner import Attempt
from holdfast.runners.function import FunctionRunner, HandlerCall
from holdfast.tasks.tasks import Task
from tests.runners.contract_jobs import runs_on_async

FINDS = "test_it_finds_what_it_offers_and_nothing_else"
NO_EFFECT = "test_a_job_has_no_effect_before_it_runs"
REFUSED_BODY = "test_a_body_that_cannot_be_read_is_refused_before_anything_runs"
RUNS_ONCE = "test_a_job_runs_once_and_its_value_is_collected"
IN_TURN = "test_attempts_one_after_the_other_leave_nothing_to_the_next"
RAISES = "test_what_a_job_fails_with_is_raised"
REFUSED_VALUE = "test_a_value_that_cannot_be_kept_is_refused"
STOPS = "test_an_attempt_that_is_asked_to_stop_learns_why_and_may_finish"
STOPS_EARLY = "test_a_request_to_stop_that_comes_before_the_run_is_kept"
KILLS = "test_a_killed_attempt_ends_only_once_nothing_of_it_runs"
KILLS_EARLY = "test_an_attempt_that_is_killed_before_it_runs_leaves_nothing"
KILLS_AGAIN = "test_a_kill_that_is_repeated_ends_no_sooner"
KILLS_ONE = "test_a_kill_leaves_other_attempts_running"
REPORTS = "test_reports_come_in_order_and_to_their_own_attempt"
CLOSES = "test_nothing_is_left_of_a_runner_that_is_closed"


class Wrapped:
    """Hands everything on to the good runner; a defect overrides what it gets wrong."""

    caught_by: ClassVar[tuple[str, ...]] = ()
    left: asyncio.Future[Any] | None = None

    def __init__(self, inner: FunctionRunner) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class WrappedAttempt:
    """Hands everything on to an attempt."""

    def __init__(self, inner: Attempt) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class FindsWhateverAJobNames(Wrapped):
    caught_by = (FINDS,)

    def find(self, job: Job) -> Task[Any, Any] | None:
        return self.inner.find(job) or self.inner.find(replace(job, task="returns"))


class IgnoresTheVersion(Wrapped):
    caught_by = (FINDS,)

    def find(self, job: Job) -> Task[Any, Any] | None:
        return self.inner.find(replace(job, task_version=None))


class OffersNothing(Wrapped):
    caught_by = (FINDS,)

    def offers(self) -> Sequence[str]:
        return ()


class PublishesNothing(Wrapped):
    caught_by = (FINDS,)

    def published(self) -> Sequence[TaskTerms]:
        return ()


class StartsWhenItBinds(Wrapped):
    caught_by = (NO_EFFECT,)

    def bind(self, task: Task[Any, Any], attempt: Attempt) -> HandlerCall:
        call = self.inner.bind(task, attempt)
        first_step: Any = self.inner.run(call)
        first_step.send(None)
        return call


class StartsWhenItPrepares(Wrapped):
    caught_by = (NO_EFFECT,)

    async def prepare(self, call: HandlerCall) -> None:
        await self.inner.run(call)


class ReadsTheBodyWhenItRuns(Wrapped):
    caught_by = (REFUSED_BODY,)

    def bind(self, task: Task[Any, Any], attempt: Attempt) -> Any:
        return lambda: self.inner.bind(task, attempt)


class RunsTwice(Wrapped):
    caught_by = (RUNS_ONCE, IN_TURN, RAISES)

    async def run(self, call: HandlerCall) -> object:
        with suppress(OSError):
            await self.inner.run(call)
        return await self.inner.run(call)


class ReturnsAnotherValue(Wrapped):
    caught_by = (RUNS_ONCE,)

    async def run(self, call: HandlerCall) -> object:
        await self.inner.run(call)
        return 43


class ActsInAnotherName(Wrapped):
    caught_by = (RUNS_ONCE,)

    def collect(self, call: HandlerCall, value: object, actor: Actor) -> Complete:
        return self.inner.collect(call, value, replace(actor, attempt=7))


class RemembersTheFirstAttempt(Wrapped):
    caught_by = (IN_TURN,)
    value: object = None

    async def run(self, call: HandlerCall) -> object:
        self.value = self.value or await self.inner.run(call)
        return self.value


class TakesAnErrorForAValue(Wrapped):
    caught_by = (RAISES,)

    async def run(self, call: HandlerCall) -> object:
        try:
            return await self.inner.run(call)
        except OSError as error:
            return str(error)


class LeavesAFailedAttemptRunning(Wrapped):
    caught_by = (RAISES, KILLS)

    async def run(self, call: HandlerCall) -> object:
        try:
            return await self.inner.run(call)
        except BaseException:
            self.left = asyncio.create_task(runs_on_async(call.ctx, **call.kwargs))
            await asyncio.sleep(0)
            raise


class KeepsWhatCannotBeKept(Wrapped):
    caught_by = (REFUSED_VALUE,)

    def collect(self, call: HandlerCall, value: object, actor: Actor) -> Complete:
        return Complete(actor=actor, body=repr(value).encode())


class NeverAsksToStop(Wrapped):
    caught_by = (STOPS, STOPS_EARLY, KILLS_ONE)

    def stop(self, call: HandlerCall, reason: str) -> None:
        pass


class LetsTheLastReasonStand(Wrapped):
    caught_by = (STOPS,)

    def stop(self, call: HandlerCall, reason: str) -> None:
        self.inner.stop(call, reason)
        call.ctx.cancelled.reason = reason


class ForgetsAStopBeforeTheRun(Wrapped):
    caught_by = (STOPS_EARLY,)
    running = False

    def stop(self, call: HandlerCall, reason: str) -> None:
        if self.running:
            self.inner.stop(call, reason)

    async def run(self, call: HandlerCall) -> object:
        self.running = True
        return await self.inner.run(call)


class KillsWhenAskedToStop(Wrapped):
    caught_by = (STOPS, KILLS_ONE)
    tasks: ClassVar[dict[int, asyncio.Task[Any]]] = {}

    def stop(self, call: HandlerCall, reason: str) -> None:
        self.tasks[id(call)].cancel()

    async def run(self, call: HandlerCall) -> object:
        self.tasks[id(call)] = asyncio.ensure_future(self.inner.run(call))
        return await self.tasks[id(call)]


class EndsBeforeAKillIsDone(Wrapped):
    caught_by = (KILLS, KILLS_EARLY, KILLS_AGAIN, CLOSES)

    async def run(self, call: HandlerCall) -> object:
        self.left = asyncio.ensure_future(self.inner.run(call))
        return await asyncio.shield(self.left)


class LetsASecondKillEndItAtOnce(Wrapped):
    caught_by = (KILLS_AGAIN,)

    async def run(self, call: HandlerCall) -> object:
        self.left = asyncio.ensure_future(self.inner.run(call))
        try:
            return await asyncio.shield(self.left)
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)
            self.left.cancel()
            await asyncio.wait([self.left])
            raise


class KillsAllAttempts(Wrapped):
    caught_by = (KILLS_ONE,)

    def __init__(self, inner: FunctionRunner) -> None:
        super().__init__(inner)
        self.running: list[asyncio.Future[Any]] = []

    def kill(self, call: HandlerCall) -> None:
        for one in self.running:
            one.cancel()

    async def run(self, call: HandlerCall) -> object:
        self.running.append(asyncio.ensure_future(self.inner.run(call)))
        return await self.running[-1]


class DropsHeartbeats(Wrapped):
    caught_by = (REPORTS,)

    def bind(self, task: Task[Any, Any], attempt: Attempt) -> HandlerCall:
        return self.inner.bind(task, _Mute(attempt))


class _Mute(WrappedAttempt):
    def heartbeat(self) -> None:
        pass


class TakesTheLogForProgress(Wrapped):
    caught_by = (REPORTS,)

    def bind(self, task: Task[Any, Any], attempt: Attempt) -> HandlerCall:
        return self.inner.bind(task, _Logging(attempt))


class _Logging(WrappedAttempt):
    def log(self, level: int, line: str) -> None:
        self.inner.progress(Body(b"0"))


class SendsReportsToTheFirstAttempt(Wrapped):
    caught_by = (REPORTS,)
    first: Attempt | None = None

    def bind(self, task: Task[Any, Any], attempt: Attempt) -> HandlerCall:
        call = self.inner.bind(task, attempt)
        self.first = self.first or attempt
        call.ctx._link = self.first
        return call


class LeavesAWarmOneBehind(Wrapped):
    caught_by = (CLOSES,)

    def run(self, call: HandlerCall) -> Awaitable[object]:
        self.left = self.left or asyncio.ensure_future(asyncio.Event().wait())
        return self.inner.run(call)


DEFECTS = (
    FindsWhateverAJobNames,
    IgnoresTheVersion,
    OffersNothing,
    PublishesNothing,
    StartsWhenItBinds,
    StartsWhenItPrepares,
    ReadsTheBodyWhenItRuns,
    RunsTwice,
    ReturnsAnotherValue,
    ActsInAnotherName,
    RemembersTheFirstAttempt,
    TakesAnErrorForAValue,
    LeavesAFailedAttemptRunning,
    KeepsWhatCannotBeKept,
    NeverAsksToStop,
    LetsTheLastReasonStand,
    ForgetsAStopBeforeTheRun,
    KillsWhenAskedToStop,
    EndsBeforeAKillIsDone,
    LetsASecondKillEndItAtOnce,
    KillsAllAttempts,
    DropsHeartbeats,
    TakesTheLogForProgress,
    SendsReportsToTheFirstAttempt,
    LeavesAWarmOneBehind,
)
