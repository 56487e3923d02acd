"""The words of the law: states, operations, roles, events.

Each word has a small code, which is what the stores keep. A code is never reused or renumbered.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Self


class Word(StrEnum):
    """A word of the law."""

    # Enum's own hash is a Python function, and a decision looks a dozen words up.
    __hash__ = str.__hash__


class Coded(Word):
    """A word with a stored code. Code 0 is "unknown": written by a newer version."""

    code: int

    def __new__(cls, value: str, code: int) -> Self:
        """Attach the stored code to the word."""
        word = str.__new__(cls, value)
        word._value_ = value
        word.code = code
        return word

    @classmethod
    def of(cls, code: int) -> Self:
        """Return the word of a stored code; an unknown one becomes the unknown word."""
        words: dict[int, Self] = _WORDS.get(cls) or _WORDS.setdefault(
            cls, {word.code: word for word in cls}
        )
        return words.get(code) or words[0]

    @classmethod
    def named(cls, value: str) -> Self:
        """Return the word with this text; an unknown one becomes the unknown word."""
        return cls._value2member_map_.get(value) or cls.of(0)  # type: ignore[return-value]


_WORDS: dict[type[Coded], dict[int, Any]] = {}


class State(Coded):
    """The state of a job. Retention is a second axis, see `Retention`."""

    UNKNOWN = ("unknown", 0)
    PENDING = ("pending", 1)
    QUEUED = ("queued", 2)
    CLAIMED = ("claimed", 3)
    RUNNING = ("running", 4)
    WAITING = ("waiting", 5)
    RETRYING = ("retrying", 6)
    STALLED = ("stalled", 7)
    SUCCEEDED = ("succeeded", 8)
    FAILED = ("failed", 9)
    CANCELLED = ("cancelled", 10)
    TIMED_OUT = ("timed_out", 11)
    DENIED = ("denied", 12)
    DEAD_LETTERED = ("dead_lettered", 13)


class EventType(Coded):
    """The one canonical vocabulary of events (C10).

    The four types of an ordinary life come first: indexes on rare types read `type > 4`.
    """

    UNKNOWN = ("unknown", 0)
    CREATED = ("job_created", 1)
    CLAIMED = ("job_claimed", 2)
    STARTED = ("job_started", 3)
    SUCCEEDED = ("job_succeeded", 4)
    HEARTBEAT = ("job_heartbeat", 5)
    LEASE_RENEWED = ("job_lease_renewed", 6)
    ADMITTED = ("job_admitted", 7)
    DENIED = ("job_denied", 8)
    HELD = ("job_held", 9)
    UNHELD = ("job_unheld", 10)
    RESCHEDULED = ("job_rescheduled", 11)
    ADOPTED = ("job_adopted", 12)
    STEP_STARTED = ("step_started", 13)
    STEP_COMPLETED = ("step_completed", 14)
    PROGRESSED = ("job_progressed", 15)
    WAITING = ("job_waiting", 16)
    WAIT_COMPLETED = ("wait_completed", 17)
    FAILED = ("job_failed", 18)
    RETRYING = ("job_retrying", 19)
    RELEASED = ("job_released", 20)
    STALLED = ("job_stalled", 21)
    REQUEUED = ("job_requeued", 22)
    CANCEL_REQUESTED = ("job_cancel_requested", 23)
    CANCELLED = ("job_cancelled", 24)
    TIMED_OUT = ("job_timed_out", 25)
    DEAD_LETTERED = ("job_dead_lettered", 26)
    SIGNAL_RECEIVED = ("signal_received", 27)
    RESULT_IGNORED = ("result_ignored", 28)
    COMPENSATED = ("job_compensated", 29)
    REDRIVEN = ("dead_letter_redriven", 30)
    DISCARDED = ("dead_letter_discarded", 31)
    CLEANING = ("job_cleaning", 32)
    CLEANED = ("job_cleaned", 33)
    STEP_FAILED = ("step_failed", 34)
    TERMS_CORRECTED = ("job_terms_corrected", 35)
    APPROVED = ("job_approved", 36)


class Role(Word):
    """In what capacity an actor acts. `OWNER` is the worker that holds the job's lease."""

    GATEWAY = "gateway"
    SCHEDULER = "scheduler"
    WORKER = "worker"
    BUS = "bus"
    OWNER = "owner"
    HOST = "host"
    RECONCILER = "reconciler"
    CONTROL = "control"
    JANITOR = "janitor"


class Operation(Word):
    """What can be done to a job."""

    SUBMIT = "submit"
    ADMIT = "admit"
    DENY = "deny"
    APPROVE = "approve"
    HOLD = "hold"
    UNHOLD = "unhold"
    RESCHEDULE = "reschedule"
    CLAIM = "claim"
    CORRECT_TERMS = "correct_terms"
    START = "start"
    HEARTBEAT = "heartbeat"
    ADOPT = "adopt"
    STEP = "step"
    PROGRESS = "progress"
    WAIT = "wait"
    RESUME = "resume"
    COMPLETE = "complete"
    FAIL = "fail"
    LOSE = "lose"
    RETRY = "retry"
    RELEASE = "release"
    STALL = "stall"
    REQUEUE = "requeue"
    REQUEST_CANCEL = "request_cancel"
    CANCEL = "cancel"
    TIME_OUT = "time_out"
    DEAD_LETTER = "dead_letter"
    SIGNAL = "signal"
    LATE_RESULT = "late_result"
    COMPENSATED = "compensated"
    REDRIVEN = "redriven"
    DISCARDED = "discarded"
    CLEAN = "clean"
    CLEANED = "cleaned"


class Kind(Coded):
    """What runs a job."""

    UNKNOWN = ("unknown", 0)
    FUNCTION = ("function", 1)
    COMMAND = ("command", 2)
    AGENT = ("agent", 3)
    BUS = ("bus", 4)


BOXED = frozenset({Kind.COMMAND, Kind.AGENT})
"""Kinds that run in a box: one succeeds only with an observed exit code 0 (resolution 17)."""


class Priority(Coded):
    """A job's class. Within reach of the ageing offset, a smaller code goes first."""

    UNKNOWN = ("unknown", 0)
    CRITICAL = ("critical", 1)
    INTERACTIVE = ("interactive", 2)
    BATCH = ("batch", 3)


class Retention(Coded):
    """The second axis of a terminal job: are its logs and artifacts still there?"""

    UNKNOWN = ("unknown", 0)
    LIVE = ("live", 1)
    CLEANING = ("cleaning", 2)
    CLEANED = ("cleaned", 3)


class CancelMode(Coded):
    """A cancel that was asked for: soft leaves a grace, hard does not."""

    UNKNOWN = ("unknown", 0)
    SOFT = ("soft", 1)
    HARD = ("hard", 2)


class Letter(Coded):
    """What became of a dead letter."""

    UNKNOWN = ("unknown", 0)
    OPEN = ("open", 1)
    REDRIVEN = ("redriven", 2)
    DISCARDED = ("discarded", 3)


class Link(Coded):
    """Why a job has a parent."""

    UNKNOWN = ("unknown", 0)
    CHILD = ("child", 1)
    RETRY = ("retry", 2)
    REDRIVE = ("redrive", 3)
    COMPENSATION = ("compensation", 4)


class KeyKind(Coded):
    """A key that a submitter may give. Codes are bits of a record's `key_kinds`.

    A dedupe key is stored as `DEDUPE` whatever its term; with the bit `DEDUPE_LIVE` it is freed
    when the job ends instead of when it is cleaned.
    """

    UNKNOWN = ("unknown", 0)
    JOB_ID = ("job_id", 1)
    REQUEST_ID = ("request_id", 2)
    CLIENT_JOB_ID = ("client_job_id", 4)
    DEDUPE = ("dedupe_key", 8)
    DEDUPE_LIVE = ("dedupe_key_live", 16)


TERMINAL = frozenset(
    {
        State.SUCCEEDED,
        State.FAILED,
        State.CANCELLED,
        State.TIMED_OUT,
        State.DENIED,
        State.DEAD_LETTERED,
    }
)
OWNED = frozenset({State.CLAIMED, State.RUNNING})
CLAIMABLE = frozenset({State.QUEUED, State.RETRYING, State.STALLED})
HOLDABLE = frozenset({State.PENDING}) | CLAIMABLE
UNOWNED = HOLDABLE | {State.WAITING}
LIVE = OWNED | UNOWNED
KNOWN = LIVE | TERMINAL
"""All states but the one of a newer version."""
SUCCESSFUL = frozenset({State.SUCCEEDED})
UNSUCCESSFUL = TERMINAL - SUCCESSFUL
LETTERED = frozenset({State.FAILED, State.DEAD_LETTERED})
"""Where a dead letter may lie: always in the second, by policy in the first (B31)."""
BEATS = frozenset({EventType.HEARTBEAT, EventType.LEASE_RENEWED})


class Phase(Word):
    """What a state means to a person who looks at many jobs."""

    QUEUED = "queued"
    CLAIMED = "claimed"
    RUNNING = "running"
    WAITING = "waiting"
    INTERRUPTED = "interrupted"
    """Between two attempts, after a failure or a loss."""
    SUCCEEDED = "succeeded"
    CANCELLED = "cancelled"
    FAILED = "failed"


PHASES: dict[State, Phase] = {
    State.PENDING: Phase.QUEUED,
    State.QUEUED: Phase.QUEUED,
    State.CLAIMED: Phase.CLAIMED,
    State.RUNNING: Phase.RUNNING,
    State.WAITING: Phase.WAITING,
    State.RETRYING: Phase.INTERRUPTED,
    State.STALLED: Phase.INTERRUPTED,
    State.SUCCEEDED: Phase.SUCCEEDED,
    State.CANCELLED: Phase.CANCELLED,
} | dict.fromkeys(UNSUCCESSFUL - {State.CANCELLED}, Phase.FAILED)

RANK = {
    State.PENDING: 0,
    State.CLAIMED: 1,
    State.RUNNING: 2,
    State.WAITING: 3,
    State.RETRYING: 3,
    State.STALLED: 3,
    State.QUEUED: 4,
} | dict.fromkeys(TERMINAL, 5)
"""Resolution 1: the pair (attempt, rank) of a job never falls."""
