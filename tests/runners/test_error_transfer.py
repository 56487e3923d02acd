"""Errors that cross from a handler's process keep what decides about the job."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import errors
from holdfast.errors import HoldfastError, RemoteError, TransientError
from holdfast.runners.process.error_transfer import describe_raised, error_of
from holdfast.runners.process.protocol import ProcessCondition

CONDITION = ProcessCondition(memory_bytes=0, left_behind=False)


def crossed(error: BaseException) -> BaseException:
    return error_of(describe_raised(error, CONDITION))


@pytest.mark.parametrize(
    "kind",
    [
        errors.BadData,
        errors.LeaseConflictError,
        errors.NoSuchTask,
        errors.PermanentError,
        errors.StoreUnavailable,
        errors.TransientError,
        errors.UnfitResult,
        errors.ValidationError,
    ],
)
def test_an_error_of_ours_keeps_its_class_code_and_job(kind: type[HoldfastError]) -> None:
    arrived = crossed(kind("why", code="finer", job_id="j"))

    assert type(arrived) is kind
    assert isinstance(arrived, HoldfastError)
    assert (str(arrived), arrived.code, arrived.job_id) == ("why", "finer", "j")
    assert arrived.report is not None


def test_one_that_another_process_told_is_told_on() -> None:
    told = errors.ErrorReport(type="x.Y", message="m", code="c")
    arrived = crossed(RemoteError(told))

    assert isinstance(arrived, RemoteError)
    assert arrived.report == told


def test_one_with_fields_of_its_own_becomes_a_remote_one() -> None:
    arrived = crossed(errors.HandlerDied("gone", exit_code=3))

    assert isinstance(arrived, RemoteError)
    assert arrived.code == "handler_died"


@pytest.mark.parametrize("retry_in", ["soon", float("nan"), float("inf"), -1, True, None])
def test_a_time_that_makes_no_sense_is_left_to_the_policy(retry_in: object) -> None:
    error = TransientError("busy")
    error.retry_in = retry_in  # type: ignore[assignment]
    arrived = crossed(error)

    assert isinstance(arrived, TransientError)
    assert arrived.retry_in in (None, 1.0)


def test_giving_up_stays_a_cancellation() -> None:
    assert isinstance(crossed(asyncio.CancelledError("enough")), asyncio.CancelledError)
