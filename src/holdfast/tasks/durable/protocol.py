"""The requests of a handler's durable calls to its worker, and the replies; also over a pipe."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct

from holdfast.lifecycle.submission import Submission
from holdfast.queries.outcomes import Outcome

QUESTION = "question"
"""The kind of an entry that is a question to people; its body is the question."""


class Entry(Struct, frozen=True, kw_only=True):
    """What the ledger recorded of one durable call."""

    kind: str
    """`step`, `wait`, `child` or `question`."""
    name: str
    use: int
    """Which use of the name it was, from 1."""
    starts: int = 0
    """How often it was started, where it is not known to have ended: its effect is unknown."""
    failed: bool = False
    """It raised the error in its body, and the handler continued."""
    timed_out: bool = False
    carried: bool = False
    """A child of the job that this one continues from."""
    signal: str | None = None
    """Which signal ended a wait."""
    body: bytes | None = None


class Recall(Struct, frozen=True, tag=True):
    """Return what earlier attempts recorded."""


class RecordStep(Struct, frozen=True, tag=True):
    """Record a step's result, or the error that it failed with."""

    name: str
    use: int
    body: bytes
    failed: bool = False


class StartStep(Struct, frozen=True, tag=True):
    """Record that a step is about to have its effect."""

    name: str
    use: int


class AwaitSignal(Struct, frozen=True, tag=True):
    """Consume a signal that has arrived, or suspend the job until it arrives or the time is up."""

    signal: str
    use: int
    seconds: float | None = None


class RecordQuestion(Struct, frozen=True, tag=True):
    """Record that the job asks a question, and continue: its answer is a signal of this name."""

    signal: str
    body: bytes


class TakeSignal(Struct, frozen=True, tag=True):
    """Consume the oldest of these signals that has arrived; the job does not wait for it."""

    signals: tuple[str, ...]


class SpawnChild(Struct, frozen=True, tag=True):
    """Submit a child, and record that in the same commit."""

    use: int
    child: Submission
    """Its `step_index` is how many came before it; whose child it is, the worker knows."""
    resumes: str | None = None
    """The child that it replaces, spawned by the job that this one continues from."""
    given: list[str] | None = None
    """Fields that the handler gave of a task that it knows by name alone; None: of its own."""


class GatherChildren(Struct, frozen=True, tag=True):
    """Return the outcomes of these children."""

    ids: list[str]


class Recalled(Struct, frozen=True, tag=True):
    """What is recorded, in order."""

    entries: list[Entry]


class StepRecorded(Struct, frozen=True, tag=True):
    """It is recorded."""


class ChildSpawned(Struct, frozen=True, tag=True):
    """The child is recorded: a new one, or the one that has succeeded before."""

    id: str


class Unsettled(Struct, frozen=True, tag=True):
    """The child that another is to replace has not ended yet."""


class Signalled(Struct, frozen=True, tag=True):
    """The signal had arrived."""

    body: bytes
    name: str | None = None


class NoSignal(Struct, frozen=True, tag=True):
    """None of the signals has arrived."""


class Gathered(Struct, frozen=True, tag=True):
    """The outcomes of the first children of the request, as many as fit."""

    outcomes: list[Outcome] | None
    """None: one of the children has not ended."""
    elsewhere: bool = False
    """None of them is this job's own: their end will not wake it."""


class Suspend(Struct, frozen=True, tag=True):
    """The job waits; its handler has to end."""


class NotRecorded(Struct, frozen=True, tag=True):
    """It could not be recorded."""

    code: str
    message: str
    permanent: bool = False
    """No further try will help."""
    again: bool = False
    """The store did not answer, and nothing was recorded: the same may be asked again."""


Request: TypeAlias = (
    Recall
    | RecordStep
    | StartStep
    | RecordQuestion
    | AwaitSignal
    | TakeSignal
    | SpawnChild
    | GatherChildren
)
Reply: TypeAlias = (
    Recalled
    | StepRecorded
    | ChildSpawned
    | Unsettled
    | Signalled
    | NoSignal
    | Gathered
    | Suspend
    | NotRecorded
)
Ask: TypeAlias = Callable[[Request, Callable[[Reply], None]], None]
"""How a request reaches the worker; the reply comes by a call, in any thread."""
