"""Log lines: each names its job, and no text can break out of its line."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.app.log_format import LONGEST_TEXT, LogFormat, configure_logging, printable
from holdfast.errors import TransientError
from holdfast.lifecycle.payload import Body
from holdfast.tasks.context import Context, JobFacts, current_context
from holdfast.telemetry.tracing import carry

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
HOSTILE = "a\nb\r\x1b[2J\x07\x00\x85\u2028\u202e\x9b31m\x7f\udc80 end"
log = logging.getLogger("holdfast.test")


class Nowhere:
    """A link to no worker."""

    def progress(self, body: Body) -> None:
        """Say nothing."""

    def ask(self, request: Any, answer: Any) -> None:
        """No handler here makes durable calls."""

    def heartbeat(self) -> None:
        """Say nothing."""

    def log(self, level: int, line: str) -> None:
        """Say nothing."""


def context(**more: Any) -> Context:
    """Make what a handler sees."""
    facts = {"id": "job-1", "task": "mail", "queue": "default", "tenant": "t", "created_at": 1}
    facts |= {"trace_id": TRACE, "correlation_id": "order-7"}
    return Context(JobFacts(**{**facts, **more}), Nowhere(), attempt=2)


class Lines:
    """What was written."""

    def __init__(self) -> None:
        """Begin empty."""
        self.stream = io.StringIO()

    def text(self) -> list[str]:
        """Give the lines, as they are."""
        return self.stream.getvalue().split("\n")[:-1]

    def json(self) -> list[dict[str, Any]]:
        """Give the lines, each read as an object."""
        return [json.loads(line) for line in self.text()]


@pytest.fixture
def lines() -> Iterator[Lines]:
    """A log in memory; the process's logging is as before afterwards."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield Lines()
    root.handlers = handlers
    root.setLevel(level)


def _only_ours() -> None:
    """Take pytest's handlers off: what they catch goes between processes, and no surrogate can."""
    root = logging.getLogger()
    root.handlers = [each for each in root.handlers if each.get_name() == "holdfast"]


@pytest.mark.req("B23")
def test_a_line_names_the_job_attempt_and_trace_of_the_handler(lines: Lines) -> None:
    configure_logging("json", "info", worker="w-1", stream=lines.stream)
    token = current_context.set(context())
    logging.getLogger("somebody.else").info("sent %s", 3)
    current_context.reset(token)
    log.info("outside")
    inside, outside = lines.json()
    assert inside.pop("time").endswith("Z")
    assert inside == {
        "level": "INFO",
        "logger": "somebody.else",
        "message": "sent 3",
        "job_id": "job-1",
        "attempt": 2,
        "task": "mail",
        "worker": "w-1",
        "trace_id": TRACE,
        "correlation_id": "order-7",
    }
    assert outside.keys() == {"time", "level", "logger", "message", "worker"}


@pytest.mark.req("B23")
async def test_two_handlers_on_one_loop_do_not_mix_their_lines(lines: Lines) -> None:
    configure_logging("json", stream=lines.stream)

    async def handler(number: int) -> None:
        current_context.set(context(id=f"job-{number}"))
        await asyncio.sleep(0)
        log.info("%s", number)

    await asyncio.gather(*(handler(number) for number in range(5)))
    assert [line["job_id"] for line in lines.json()] == [f"job-{n}" for n in range(5)]


def test_the_jobs_own_logger_names_it_from_anywhere(lines: Lines) -> None:
    configure_logging("json", stream=lines.stream)
    context(id="job-9").log.warning("late", extra={"customer": "c-1"})
    (line,) = lines.json()
    assert (line["job_id"], line["attempt"], line["trace_id"]) == ("job-9", 2, TRACE)
    assert line["extra"] == {"customer": "c-1"}
    assert line["logger"] == "holdfast.task.mail"


@pytest.mark.req("B23")
def test_without_a_job_the_active_trace_is_named(lines: Lines) -> None:
    configure_logging("json", stream=lines.stream)
    with carry(f"00-{TRACE}-00f067aa0ba902b7-01"):
        log.info("submitting")
    assert lines.json()[0]["trace_id"] == TRACE


def test_an_error_is_told_with_type_code_and_traceback(lines: Lines) -> None:
    configure_logging("json", stream=lines.stream)
    try:
        raise TransientError("busy")
    except TransientError:
        log.exception("failed")
    error = lines.json()[0]["error"]
    assert (error["type"], error["message"], error["code"]) == (
        "TransientError",
        "busy",
        "transient",
    )
    assert "test_log_format.py" in error["traceback"]


@pytest.mark.parametrize("format", list(LogFormat))
def test_hostile_text_stays_within_its_line(lines: Lines, format: LogFormat) -> None:
    configure_logging(format, stream=lines.stream)
    _only_ours()
    token = current_context.set(context(id=HOSTILE, task=HOSTILE, trace_id=HOSTILE))
    logging.getLogger(HOSTILE).warning(HOSTILE, extra={HOSTILE: HOSTILE, "more": [HOSTILE]})
    log.warning("%s", HOSTILE)
    current_context.reset(token)
    assert len(lines.text()) == 2
    for line in lines.text():
        assert line.isprintable()
        assert line.encode("utf-8")
    if format is LogFormat.JSON:
        assert [line["message"] for line in lines.json()] == [HOSTILE, HOSTILE]


def test_no_line_of_a_traceback_passes_for_a_record(lines: Lines) -> None:
    configure_logging("text", stream=lines.stream)
    try:
        raise ValueError("x\n2026-01-01T00:00:00.000Z INFO    root: forged\x1b[2J")
    except ValueError:
        log.exception("failed")
    first, *rest = lines.text()
    assert "ERROR   holdfast.test: failed" in first
    assert rest
    assert all(line.startswith("    ") and line.isprintable() for line in rest)


def test_a_person_reads_the_job_at_the_end_of_the_line(lines: Lines) -> None:
    configure_logging(LogFormat.TEXT, stream=lines.stream)
    token = current_context.set(context())
    log.info("sent")
    current_context.reset(token)
    (line,) = lines.text()
    told = f"job_id=job-1 attempt=2 task=mail trace_id={TRACE} correlation_id=order-7"
    assert line.endswith(f" INFO    holdfast.test: sent  [{told}]")


class Unspeakable:
    """A value that cannot be told."""

    def __str__(self) -> str:
        """Fail."""
        raise RuntimeError("no")


class UnspeakableError(Exception):
    """An error that cannot be told."""

    def __str__(self) -> str:
        """Fail."""
        raise RuntimeError("no")


@pytest.mark.parametrize("format", list(LogFormat))
def test_a_log_call_that_is_wrong_keeps_its_line(lines: Lines, format: LogFormat) -> None:
    logging.getLogger().handlers = []  # pytest's own would raise
    configure_logging(format, stream=lines.stream)
    log.info("%d jobs", "many")
    log.info("%s", Unspeakable(), extra={"value": Unspeakable()})
    try:
        raise UnspeakableError
    except UnspeakableError:
        log.exception("failed")
    text = lines.stream.getvalue()
    assert "many" in text
    assert "<Unspeakable>" in text
    assert "UnspeakableError" in text


def test_a_line_is_bounded(lines: Lines) -> None:
    configure_logging("json", stream=lines.stream)
    log.info("x" * 1_000_000, extra={f"k{n}": "y" * 100 for n in range(1000)})
    (line,) = lines.json()
    assert len(line["message"]) < LONGEST_TEXT + 100
    assert line["message"].endswith("(1000000 characters)")
    assert len(line["extra"]) == 30


def test_numbers_that_json_lacks_are_told_as_text(lines: Lines) -> None:
    configure_logging("json", stream=lines.stream)
    odd = {"nan": float("nan"), "far": 10**5000, "flag": True, "share": 0.5, "none": None}
    log.info("x", extra=odd)
    told = {"nan": "nan", "far": "<int>", "flag": True, "share": 0.5, "none": None}
    assert lines.json()[0]["extra"] == told


def test_configuring_again_replaces_and_leaves_others_alone(lines: Lines) -> None:
    mine = logging.NullHandler()
    logging.getLogger().addHandler(mine)
    configure_logging("text", stream=io.StringIO())
    configure_logging("json", "warning", stream=lines.stream)
    log.info("quiet")
    log.warning("loud")
    assert [line["message"] for line in lines.json()] == ["loud"]
    assert mine in logging.getLogger().handlers


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        """Say so."""
        return True


def test_colours_are_for_terminals_alone(lines: Lines) -> None:
    terminal = Terminal()
    configure_logging("text", stream=terminal)
    log.error("red")
    assert "\x1b[31mERROR" in terminal.getvalue()
    configure_logging("text", stream=lines.stream)
    log.error("plain")
    assert "\x1b" not in lines.stream.getvalue()


def test_plain_text_of_any_language_is_left_as_it_is() -> None:
    assert printable("grün 漢字 ok") == "grün 漢字 ok"
    assert printable("a\tb") == "a\\tb"
