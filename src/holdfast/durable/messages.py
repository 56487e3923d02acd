"""What a handler's durable calls ask of its worker, and what it answers: also over a pipe."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct

from holdfast.flow.outcomes import Outcome
from holdfast.lifecycle.submit import Submission


class Entry(Struct, frozen=True, kw_only=True):
    """What the ledger remembers of one durable call."""

    kind: str
    """`step`, `wait` or `child`."""
    name: str
    use: int
    """Which use of the name it was, from 1."""
    begun: int = 0
    """How often it was begun, where it is not known to have ended: its effect is unknown."""
    failed: bool = False
    """It raised what its body tells, and the handler went on."""
    timed_out: bool = False
    carried: bool = False
    """A child of the job that this one continues from."""
    signal: str | None = None
    """Which signal ended a wait."""
    body: bytes | None = None


class Recall(Struct, frozen=True, tag=True):
    """What is recorded of earlier attempts?"""


class Record(Struct, frozen=True, tag=True):
    """Remember a step's result, or the error that it failed with."""

    name: str
    use: int
    body: bytes
    failed: bool = False


class Begin(Struct, frozen=True, tag=True):
    """Remember that a step is about to have its effect."""

    name: str
    use: int


class Await(Struct, frozen=True, tag=True):
    """Consume a signal that is there, or park the job until it comes or the time is up."""

    signal: str
    use: int
    seconds: float | None = None


class Spawn(Struct, frozen=True, tag=True):
    """Make a child, and remember that it was made."""

    use: int
    child: Submission
    """Its `step_index` is how many came before it; whose child it is, the worker knows."""
    resumes: str | None = None
    """The child in whose place it comes, spawned by the job that this one continues from."""
    given: list[str] | None = None
    """Fields that the handler gave of a task that it knows by name alone; None: of its own."""


class Gather(Struct, frozen=True, tag=True):
    """What did these children come to?"""

    ids: list[str]


class Recalled(Struct, frozen=True, tag=True):
    """What is recorded, in order."""

    entries: list[Entry]


class Written(Struct, frozen=True, tag=True):
    """It is durable."""


class Spawned(Struct, frozen=True, tag=True):
    """The child is durable: a new one, or the one that has succeeded before."""

    id: str


class Unsettled(Struct, frozen=True, tag=True):
    """The child in whose place another is to come has not ended yet."""


class Signalled(Struct, frozen=True, tag=True):
    """The signal was there."""

    body: bytes
    name: str | None = None


class Gathered(Struct, frozen=True, tag=True):
    """What the first of the children that were asked about came to, as many as fit."""

    outcomes: list[Outcome] | None
    """None: one of those that were asked about has not ended."""
    elsewhere: bool = False
    """None of this job's own: nobody will wake it."""


class Parked(Struct, frozen=True, tag=True):
    """The job is parked; the handler has to end."""


class Refused(Struct, frozen=True, tag=True):
    """It could not be written."""

    code: str
    message: str
    permanent: bool = False
    """No further try will help."""


Request: TypeAlias = Recall | Record | Begin | Await | Spawn | Gather
Reply: TypeAlias = (
    Recalled | Written | Spawned | Unsettled | Signalled | Gathered | Parked | Refused
)
Ask: TypeAlias = Callable[[Request, Callable[[Reply], None]], None]
"""How a request reaches the worker; the reply comes by a call, in any thread."""
