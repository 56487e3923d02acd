"""Every command that `why`, an error or a help text names is there, with the options named."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import typer

import holdfast
from holdfast.cli.main import app
from holdfast.ids import mint_id
from holdfast.lifecycle.record import MISMATCH, SLEEP
from holdfast.lifecycle.signals import any_of
from holdfast.lifecycle.states import CancelMode, Letter, State
from holdfast.queries.why import reasons as r
from holdfast.queries.why.facts import Act, FailedAttempt, LiveChild, PlacedHold

SOURCES = Path(holdfast.__file__).parent
ACT = Act(by="ann", at=1)
ENDED: dict[str, Any] = {
    "state": State.DEAD_LETTERED, "at": 1, "ended": ACT, "cancelled": None, "rule": None,
    "error": None, "attempts": 1, "stage": None, "kill": None, "last_owner": None,
    "settled": None, "redriven_as": None,
}  # fmt: skip
CHILD = LiveChild(id=mint_id(), job_id="c", task="t", state=State.QUEUED)
FAILURE = FailedAttempt(error_code="x", error=None, cause=None, attempt=1, at=1, by="w")
TIMES: dict[str, Any] = {"since": 1, "until": 2}
REASONS: list[r.Reason] = [
    r.Ended(**ENDED, error_code="x", letter=Letter.OPEN),
    r.Ended(**ENDED, error_code="address_blocked", letter=None),
    r.NewerVersion(),
    r.AwaitsAdmission(since=1),
    r.AwaitsApproval(rule="two", missing=1, roles=("operator",), approved=(ACT,), **TIMES),
    r.AwaitsDecision(
        rule="ask", since=1, kernel="http://k", first_failed_at=1, tries=2, error="no answer"
    ),
    r.WaitsForUpload(upload="u1", state="uploading", **TIMES),
    r.HeldJob(holds=(PlacedHold(name="audit"), PlacedHold(name="two words"))),
    r.QueuePaused(queue="mail", paused=ACT),
    r.NotDue(until=2, set=None),
    r.BacksOff(until=2, failure=FAILURE, failures=1, max_attempts=4),
    r.NoWorker(queue="mail", last_seen=()),
    r.NoCapableWorker(queue="q", needs=("gpu",), missing=("gpu",), closest="w", workers=1),
    r.NoCapableWorker(
        queue="q", needs=("adapter:a", "gpu"), missing=("adapter:a",), closest="w", workers=1
    ),
    r.NoTopicWorker(topic="job.a", queue="q", workers=0),
    r.NoTopicWorker(topic="job.a", queue="job.a", bus=True, workers=0),
    r.NoCommandWorker(queue="q", missing=("command",), workers=0),
    r.NoRoom(cpus=8, memory_mb=None, host="h", host_cpus=4, host_memory_mb=1, ever=False),
    r.TaskUnknown(queue="q", task="t", workers=("w",)),
    r.ReadyToClaim(
        since=1, workers=("w",), slots=1, under_way=0, others=0, cpus=None, memory_mb=None
    ),
    r.NotStarted(worker="w", start_by=None, seen=None, **TIMES),
    r.Running(worker="w", since=1, lease_until=2, time_out_at=None, seen=None),
    r.AsksQuestion(signal="answer:merge", question="Merge it?", choices=("yes", "no"), since=1),
    r.CancelRequested(mode=CancelMode.SOFT, asked=None, worker="w"),
    r.Unkillable(said=ACT),
    r.Overdue(what="lease", since=None, not_before=None, worker=None, seen=None),
    r.Waiting(signal="go", **TIMES),
    r.Waiting(signal=any_of(["yes", "no"]), **TIMES),
    r.Waiting(signal=SLEEP, **TIMES),
    r.Waiting(signal="resolve:charge", **TIMES),
    r.AsksQuestion(signal="ask-1", question="Delete it?", choices=("yes", "no"), since=1),
    r.WaitsForChildren(live=1, more=False, children=(CHILD,), since=None),
    r.StepsDiffer(parked=None, until=None),
    r.ChildElsewhere(**TIMES),
    r.ClockSetBack(at=1, by=1, ahead=1),
    r.TimesAhead(by=1),
    r.SetAside(internal_id=mint_id(), since=1, damage="its policy is unknown"),
]
NAMED = re.compile(r"(?:`|[:;,] |or |run |see )holdfast ([a-z][^`\n;,.)]*)")
"""A command in a text: quoted, or behind a word that leads to one."""


def tree() -> Any:
    """All commands."""
    return typer.main.get_command(app)


def missing(words: list[str]) -> str | None:
    """Name the first word of a line that the command does not have; a group may stand alone."""
    command, path = tree(), list(words)
    while hasattr(command, "commands"):
        if not path:
            return None
        if path[0] not in command.commands:
            return path[0]
        command = command.commands[path.pop(0)]
    known = {one for each in command.params for one in (*each.opts, *each.secondary_opts)}
    # What follows two dashes belongs to the program that is run.
    path = path[: path.index("--")] if "--" in path else path
    return next((one for one in path if one.startswith("--") and one not in known), None)


def commands_in(text: str) -> list[list[str]]:
    """Find the commands in an advice."""
    parts = re.split(r"\bholdfast ", text)[1:]
    return [shlex.split(part.partition("`")[0].rstrip(";, ")) for part in parts]


def test_every_reason_is_tried() -> None:
    assert {type(one) for one in REASONS} == set(get_args(r.Reason))


@pytest.mark.parametrize("reason", REASONS, ids=lambda reason: reason.code)
def test_every_command_that_why_names_is_there_with_its_options(reason: r.Reason) -> None:
    advice = reason.advice("job-7")
    for text in (advice or "", *re.findall(r"`([^`]*)`", reason.sentence(3))):
        for words in commands_in(text):
            assert missing(words) is None, words


@pytest.mark.parametrize(
    "reason",
    [one for one in REASONS if isinstance(one, r.Waiting | r.StepsDiffer)],
    ids=lambda one: str(getattr(one, "signal", MISMATCH)),
)
def test_no_signal_is_advised_that_nobody_can_send(reason: r.Reason) -> None:
    for words in commands_in(reason.advice("job-7") or ""):
        if words[0] == "signal":
            assert not words[2].startswith("holdfast:") or words[2] == MISMATCH


def texts() -> Iterator[tuple[str, str]]:
    """Go through all texts in the code, docstrings among them, with where they stand."""
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [getattr(one, "value", "X") for one in node.values]
                text = "".join(one if isinstance(one, str) else "X" for one in parts)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
            else:
                continue
            yield f"{path.relative_to(SOURCES)}:{node.lineno}", text


def test_every_command_that_a_message_names_is_there_with_its_options() -> None:
    found = [(where, line) for where, text in texts() for line in NAMED.findall(text)]
    assert len({line for _, line in found}) > 30
    wrong = {
        (where, line): bad
        for where, line in found
        if (bad := missing([word.rstrip("'\"").partition("=")[0] for word in line.split()]))
    }
    assert wrong == {}
