"""`ctx.log`: what of it is kept by the job, and that nothing said there can fail a handler."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from holdfast.ports.models import LOG_TEXT
from holdfast.tasks.job_logger import JobLogger
from holdfast.telemetry.redaction import redacting

NAME = "holdfast.task.kept"


class Unspeakable:
    """Raises when it is told."""

    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


@pytest.fixture
def lines() -> list[tuple[int, str]]:
    """What was kept."""
    return []


@pytest.fixture
def logger(lines: list[tuple[int, str]]) -> JobLogger:
    """A job's logger, in a process that logs warnings."""
    logging.getLogger(NAME).setLevel(logging.WARNING)
    keep = lambda level, line: lines.append((level, line))  # noqa: E731  a line is a line
    return JobLogger(logging.getLogger(NAME), {"job_id": "j-1"}, keep)


def test_information_is_kept_though_the_process_does_not_log_it(
    logger: JobLogger, lines: list[tuple[int, str]], caplog: pytest.LogCaptureFixture
) -> None:
    logger.info("read %d of %s", 3, "ten")
    logger.debug("never")
    logger.warning("both")

    assert lines == [(logging.INFO, "read 3 of ten"), (logging.WARNING, "both")]
    assert [record.getMessage() for record in caplog.records] == ["both"]


def test_details_are_kept_where_the_process_logs_them(
    logger: JobLogger, lines: list[tuple[int, str]]
) -> None:
    logging.getLogger(NAME).setLevel(logging.DEBUG)
    logger.debug("detail")

    assert lines == [(logging.DEBUG, "detail")]


def test_a_record_names_the_line_that_said_it(
    logger: JobLogger, caplog: pytest.LogCaptureFixture
) -> None:
    logger.warning("here")
    logger.log(logging.ERROR, "and here")

    names = {record.funcName for record in caplog.records}
    assert names == {"test_a_record_names_the_line_that_said_it"}
    assert {record.job_id for record in caplog.records} == {"j-1"}  # type: ignore[attr-defined]


@pytest.mark.parametrize("given", ["true", "instance", "triple"])
def test_an_error_is_kept_with_its_traceback(
    logger: JobLogger, lines: list[tuple[int, str]], given: str
) -> None:
    try:
        raise ValueError("odd")
    except ValueError as error:
        ways: dict[str, Any] = {
            "true": True,
            "instance": error,
            "triple": (ValueError, error, error.__traceback__),
        }
        logger.error("failed", exc_info=ways[given])

    [(level, line)] = lines
    assert level == logging.ERROR
    first, *_, last = line.splitlines()
    assert (first, last) == ("failed", "ValueError: odd")
    assert __file__ in line


def test_no_error_is_told_where_there_is_none(
    logger: JobLogger, lines: list[tuple[int, str]]
) -> None:
    logger.info("fine", exc_info=True)
    logger.info("fine", exc_info=False)

    assert [line for _, line in lines] == ["fine", "fine"]


def test_the_end_of_a_long_traceback_is_kept(
    logger: JobLogger, lines: list[tuple[int, str]]
) -> None:
    def deep(levels: int) -> None:
        if levels:
            deeper(levels - 1)
        raise OSError("at the bottom")

    # Two in turn: a line that repeats would be told but once.
    def deeper(levels: int) -> None:
        deep(levels - 1)

    try:
        deep(150)
    except OSError as error:
        logger.error("failed", exc_info=error)

    [(_, line)] = lines
    assert len(line) == LOG_TEXT
    assert line.startswith("failed\n")
    assert line.endswith("OSError: at the bottom")


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        (("a\0b \ud800",), "a\ufffdb ?"),
        (("%d apples", "three"), "%d apples"),
        ((Unspeakable(),), "<Unspeakable>"),
        (("x" * (LOG_TEXT + 1),), "x" * (LOG_TEXT - 1) + "…"),
        (("100 %",), "100 %"),
    ],
    ids=["no text", "wrong arguments", "a hostile class", "too long", "no arguments"],
)
def test_whatever_is_said_is_kept_as_text(
    logger: JobLogger, lines: list[tuple[int, str]], said: tuple[Any, ...], kept: str
) -> None:
    logger.info(*said)

    assert [line for _, line in lines] == [kept]


def test_a_secret_where_a_line_is_cut_is_redacted(
    logger: JobLogger, lines: list[tuple[int, str]]
) -> None:
    with redacting(lambda text: text.replace("hunter2", "***")):
        logger.info("%s hunter2", "x" * (LOG_TEXT - 6))
    assert "hun" not in lines[0][1]
