"""The port of runners: what runs the jobs of one kind, behind the worker's pipeline.

The worker knows leases, commits and time limits; a runner knows what a job of its kind is (a
function, a process, a container) and how that is started, asked to stop and killed. For each
attempt the executor calls, in this order:

    find → bind → prepare → (the start is committed) → run → collect

and beside `prepare` and `run`, where the attempt is to end early, `stop` and then `kill`. For an
attempt that a worker of the same host left behind it calls `find → bind → resume → collect`. All
calls come from the worker's event loop; only `prepare`, `run` and `resume` may take time.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from holdfast.lifecycle.commands import Complete, EndOfRun
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.payload import Body
from holdfast.lifecycle.record import Actor, Job
from holdfast.lifecycle.terms import TaskTerms
from holdfast.ports.models import Claimed

KILL_PATIENCE_SECONDS = 2.0

C = TypeVar("C")
"""What a runner keeps of one attempt."""
T = TypeVar("T", bound="Runnable")


class Runnable(Protocol):
    """What a job names, as this worker knows it: for a function, its task."""

    @property
    def policy(self) -> Policy:
        """The terms that its jobs run under; a job with weaker ones is corrected first."""

    def grace_seconds(self, reason: str) -> float:
        """Return how long an attempt that was asked to stop may take before it is killed.

        `reason` is `cancel` (a soft one; a hard one has no grace) or `timeout`, `deadline`.
        """

    @property
    def compensated_steps(self) -> frozenset[str]:
        """The steps that it can undo; raise NoSuchTask if it has no compensation at all."""


class BoxedRunnable(Runnable, Protocol):
    """What a job names that takes room on its host."""

    @property
    def network(self) -> str | None:
        """The network that its box gets, for the record; None if it gets none."""


class Attempt(Protocol):
    """An attempt as its runner sees it: the job, the time limit, and the way to the worker.

    Its methods may be called from any thread and never block. What is reported after `run` has
    ended is dropped, except lines of the log.
    """

    @property
    def claimed(self) -> Claimed:
        """The job as it was claimed."""

    @property
    def ends_at(self) -> float | None:
        """When its time is up, by the monotonic clock; None without a limit."""

    def progress(self, body: Body) -> None:
        """Record how far the job is."""

    def heartbeat(self) -> None:
        """Renew the lease in the job's own name."""

    def log(self, level: int, line: str) -> None:
        """Keep a line of the job's log."""

    def ask(self, request: Any, answer: Callable[[Any], None]) -> None:
        """Make a durable call (`tasks.durable.protocol`); `answer` is called in any thread."""


class Runner(Protocol[T, C]):
    """Runs jobs of one kind. `holdfast.testing.RunnerContract` checks what is promised here."""

    kill_patience_seconds: float
    """How long a killed attempt may take to be dead before the record states that it cannot be
    killed; see `KILL_PATIENCE_SECONDS`."""
    observes_exits: bool
    """Whether `run` itself knows an attempt that ended by itself from one that was stopped, such as
    by an exit code: then what it returns or raises stands, also after a request to stop."""

    def offers(self) -> Sequence[str]:
        """Return the names under which jobs are claimed for it, with versions where it has them.

        May be called for every claim; more may be offered later, never less.
        """

    def published(self) -> Sequence[TaskTerms]:
        """Return the terms that the worker publishes, so that its jobs can be submitted by name."""

    def find(self, job: Job) -> T | None:
        """Return what a job is to run; None where this runner does not have it.

        A job that no runner of its kind has is released to other workers.
        """

    def bind(self, runnable: T, attempt: Attempt) -> C:
        """Read the job's body, and return what the calls below are given.

        Has no effect outside the process and starts nothing: the job does not count as started
        yet. Raise ValidationError for a body that no attempt can run.
        """

    def prepare(self, call: C) -> Awaitable[None] | None:
        """Make ready what `run` needs, such as a container that is created and not started.

        Leaves nothing running; a later attempt may do it again. None where there is nothing to
        wait for. After a `stop` it may raise CancelledError instead of getting ready.
        """

    def run(self, call: C) -> Awaitable[object]:
        """Run the job once, and return its value, or raise what it failed with.

        The awaitable ends only once nothing of the attempt runs any more, however it ends: by
        then another attempt may start. Cancelling it kills the attempt: the cancellation is raised
        once the attempt is proven dead. What cannot be killed is waited for; the worker
        records that, and cancels again.
        """

    def stop(self, call: C, reason: str) -> None:
        """Ask a running attempt to stop; it may run until it is killed. Never blocks.

        May come after `bind` and before `run`, and more than once; the first reason stands.
        """

    def kill(self, call: C) -> None:
        """Take note that the attempt is killed: `run` is cancelled next. Never blocks."""

    def collect(self, call: C, value: object, actor: Actor) -> Complete:
        """Return the command that completes the job: the value that `run` returned, written down.

        With the facts of its kind, such as an exit code. Raise UnfitResult if it cannot be kept.
        """

    async def close(self) -> None:
        """Let nothing survive; `run` starts nothing any more. Called once, at the worker's end.

        Except attempts that were left to continue: see `SurvivingRunner.leave`.
        """


class SurvivingRunner(Runner[T, C], Protocol[T, C]):
    """A runner whose attempts can continue without the worker that started them."""

    def survives(self, call: C) -> bool:
        """Return whether this attempt can continue."""

    def leave(self, call: C) -> None:
        """Let an attempt continue alone: `run` is cancelled next, and does not kill it."""

    def is_keeping(self, call: C) -> bool:
        """Return whether nothing of an attempt runs any more, and its outputs are being kept.

        Then there is nothing to stop, whatever is asked for: how it ended is known (resolution 11).
        """

    def add_outputs(self, call: C, end: EndOfRun) -> EndOfRun:
        """Return the end of an attempt with what was kept of its log and artifacts."""

    def resume(self, call: C) -> Awaitable[object]:
        """Continue an attempt of a worker that died or left it: as `run`, without a start.

        What was prepared and never started is started here: its start is on record.
        """


AnySurvivingRunner: TypeAlias = SurvivingRunner[Any, Any]
"""One whose calls the worker passes on without a look into them."""
