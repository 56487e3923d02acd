"""An error in words: everything that helps, nothing without bound, and telling it never fails."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.errors import ErrorReport, PermanentError, RemoteError
from holdfast.lifecycle.payload import encode_body
from holdfast.queries.error_reports import (
    CHAIN_LIMIT,
    MESSAGE_LIMIT,
    REDACTED_LIMIT,
    TRACEBACK_LIMIT,
    describe_error,
    redact_and_cut,
)
from holdfast.telemetry.redaction import redacting


def raised(act: Callable[[], object]) -> BaseException:
    try:
        act()
    except BaseException as error:  # noqa: BLE001  (whatever it is, it is told)
        return error
    raise AssertionError("it did not raise")


def body_of(report: ErrorReport) -> bytes:
    """What is kept of it, through the check that every body passes."""
    return encode_body({name: getattr(report, name) for name in report.__struct_fields__}, "error")


def test_an_error_is_told_with_type_message_code_and_traceback() -> None:
    report = describe_error(raised(lambda: int("x")))

    assert (report.type, report.code) == ("ValueError", "handler_error")
    assert report.message == "invalid literal for int() with base 10: 'x'"
    assert "test_error_reports.py" in report.traceback
    assert report.traceback.rstrip().endswith(f"ValueError: {report.message}")
    assert report.chain == ()


def test_an_error_of_ours_keeps_its_code() -> None:
    report = describe_error(PermanentError("no such account", code="no_account"))
    assert (report.type, report.code) == ("holdfast.errors.PermanentError", "no_account")


def test_causes_and_contexts_are_told_nearest_first() -> None:
    def act() -> None:
        try:
            try:
                raise KeyError("first")
            except KeyError as error:
                raise OSError("second") from error
        except OSError:
            raise RuntimeError("third")  # noqa: B904  (the context is the point)

    report = describe_error(raised(act))

    assert [(link["relation"], link["type"]) for link in report.chain] == [
        ("context", "OSError"),
        ("cause", "KeyError"),
    ]
    assert "While handling:" in report.traceback
    assert "Caused by:" in report.traceback


def test_a_suppressed_context_is_left_out() -> None:
    def act() -> None:
        try:
            raise KeyError("hidden")
        except KeyError:
            raise RuntimeError("shown") from None

    assert describe_error(raised(act)).chain == ()


def test_the_members_of_a_group_are_told() -> None:
    group = ExceptionGroup("two went wrong", [ValueError("a"), OSError("b")])
    chain = describe_error(group).chain

    assert [(link["relation"], link["message"]) for link in chain] == [
        ("member", "a"),
        ("member", "b"),
    ]


def test_a_long_chain_and_a_circle_end() -> None:
    first = error = RuntimeError("0")
    for number in range(1, 10_000):
        error.__cause__ = RuntimeError(str(number))
        error = error.__cause__
    assert len(describe_error(first).chain) == CHAIN_LIMIT

    one, two = RuntimeError("one"), RuntimeError("two")
    one.__cause__, two.__cause__ = two, one
    assert len(describe_error(one).chain) == 1


def test_long_text_is_cut_and_a_traceback_keeps_both_ends() -> None:
    def fall(depth: int) -> None:
        if depth == 0:
            raise ValueError("x" * 1_000_000)
        fall_too(depth)

    def fall_too(depth: int) -> None:
        fall(depth - 1)

    report = describe_error(raised(lambda: fall(150)))

    assert len(report.message) == MESSAGE_LIMIT
    assert len(report.traceback) <= TRACEBACK_LIMIT
    assert "in raised" in report.traceback
    assert "more frames" in report.traceback or "characters …" in report.traceback
    assert "raise ValueError" in report.traceback


def test_an_endless_recursion_is_told() -> None:
    def fall() -> None:
        fall()

    report = describe_error(raised(fall))
    assert report.type == "RecursionError"
    assert len(report.traceback) <= TRACEBACK_LIMIT


class Hostile(Exception):
    """Fails wherever it is looked at, and not only with what `except Exception` catches."""

    def __str__(self) -> str:
        raise KeyboardInterrupt

    def __getattribute__(self, name: str) -> Any:
        sys.exit(name)


class Liar(Exception):
    """Says that it is something else."""

    @property
    def __class__(self) -> Any:
        return PermanentError

    @__class__.setter
    def __class__(self, value: Any) -> None:
        """Nothing."""


ODD: dict[str, Callable[[], BaseException]] = {
    "hostile": Hostile,
    "liar": lambda: Liar("x"),
    "odd text": lambda: ValueError("nul \0, surrogate \ud800"),
    "unicode": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "why"),
    "odd type": lambda: type("Odd" * 1000, (Exception,), {"__module__": "\ud800\0"})("x"),
    "group": lambda: BaseExceptionGroup("g", [KeyboardInterrupt(), Hostile()]),
}


@pytest.mark.parametrize("kind", ODD)
def test_whatever_an_exception_does_it_is_told_and_can_be_kept(kind: str) -> None:
    report = describe_error(ODD[kind]())

    assert report.type
    assert body_of(report)


def test_odd_notes_do_no_harm() -> None:
    error = ValueError("x")
    error.__notes__ = ["a note \0" + "y" * 100_000, object()]  # type: ignore[list-item]
    report = describe_error(error)

    assert "a note" in report.traceback
    assert body_of(report)


def test_what_another_process_told_is_passed_on() -> None:
    told = ErrorReport(type="their.Error", message="m", code="c", traceback="theirs")
    assert describe_error(RemoteError(told)) is told

    error = PermanentError("m")
    error.report = told
    assert describe_error(error) is told


KEY = "sk_" + 24 * "a"


def masked(text: str) -> str:
    """Hide keys that are whole, as most patterns for secrets do."""
    return re.sub(r"sk_[a-z]{24}\b", "***", text)


@pytest.mark.parametrize("length", [MESSAGE_LIMIT - 10, REDACTED_LIMIT - 10])
def test_a_secret_where_a_text_is_cut_is_redacted(length: int) -> None:
    error = ValueError("x" * (length - 1) + f" {KEY} and more")
    error.add_note("y" * (MESSAGE_LIMIT - 10) + f" {KEY}")
    error.__cause__ = OSError("z" * (length - 1) + f" {KEY}")
    with redacting(masked):
        report = describe_error(raised(lambda: _raise(error)))
    for text in (report.message, report.traceback, report.chain[0]["message"]):
        assert "sk_" not in text


def test_a_secret_at_the_bound_of_what_is_redacted_does_not_show() -> None:
    secrets = f"{KEY} " * (REDACTED_LIMIT // (len(KEY) + 1)) + f"xx{KEY}"
    with redacting(lambda text: masked(text).replace("*** ", "")):
        assert "sk_" not in redact_and_cut(secrets + KEY, MESSAGE_LIMIT)


def _raise(error: BaseException) -> None:
    raise error
