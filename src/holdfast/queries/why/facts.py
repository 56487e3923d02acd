"""Facts that reasons are made of, and how a sentence shows them."""

from __future__ import annotations

import shlex

from msgspec import Struct

from holdfast.lifecycle.record import JobId
from holdfast.lifecycle.states import State
from holdfast.queries.why.phrases import colon, describe_time, since


class Act(Struct, frozen=True, kw_only=True):
    """Who did something, when, and for what reason."""

    by: str
    at: int
    cause: str | None = None


class FailedAttempt(Struct, frozen=True, kw_only=True):
    """How an attempt failed: by an error, or (without a code) by the loss of its owner."""

    error_code: str | None
    error: str | None
    """Type and message, shortened; None if none was given or retention erased it."""
    cause: str | None
    attempt: int
    at: int
    by: str


class PlacedHold(Struct, frozen=True, kw_only=True):
    """One hold on a job, and who placed it."""

    name: str
    put: Act | None = None


class LiveChild(Struct, frozen=True, kw_only=True):
    """A child that has not ended."""

    id: JobId
    job_id: str
    task: str
    state: State


class SeenWorker(Struct, frozen=True, kw_only=True):
    """A worker as it was last seen."""

    name: str
    host: str
    pid: int
    seen_at: int
    stopped_at: int | None
    live: bool


def failure_text(failure: FailedAttempt, now: int) -> str:
    """Describe a failed attempt in half a sentence."""
    attempt = f"attempt {failure.attempt}"
    if failure.error_code is None:
        text = f"{attempt} was lost by {failure.by}{colon(failure.cause)}"
    else:
        text = f"{failure.error_code} in {attempt} by {failure.by}{colon(failure.error)}"
    return f"{text}, {describe_time(failure.at, now)}"


def command(*words: str) -> str:
    return shlex.join(["holdfast", *words])


def act_text(act: Act | None, now: int) -> str:
    return "" if act is None else f" {describe_time(act.at, now)} by {act.by}{colon(act.cause)}"


def again_text(until: int | None, now: int) -> str:
    return "" if until is None else f"; it is checked again {describe_time(until, now)}"


def seen_text(worker: SeenWorker, now: int) -> str:
    if worker.stopped_at is not None:
        return f"{worker.name}, ended {describe_time(worker.stopped_at, now)}"
    return f"{worker.name} on {worker.host}, silent{since(worker.seen_at, now)}"


def silent_text(worker: SeenWorker | None, now: int) -> str:
    return (
        "" if worker is None or worker.live else f"; its worker is gone: {seen_text(worker, now)}"
    )
