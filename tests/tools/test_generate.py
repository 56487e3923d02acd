"""The generated files: current, repeatable, and true of what jobs really do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from holdfast.lifecycle.dialects import DIALECTS
from holdfast.lifecycle.invariants import RULES
from holdfast.lifecycle.states import EventType, State
from holdfast.lifecycle.transitions import TABLE
from tests.lifecycle.histories import random_histories
from tools import generate
from tools.lifecycle_page import event_names, lifecycle_page


def one_file() -> Mapping[str, str]:
    return {"docs/page.md": "fresh\n"}


def run(root: Path, *arguments: str) -> int:
    return generate.main(arguments, root=root, generators=(one_file,))


def test_the_generated_files_are_current() -> None:
    assert generate.stale(generate.ROOT) == {}


def test_a_stale_file_fails_the_check_and_is_not_touched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path)
    page = tmp_path / "docs/page.md"
    page.write_text("stale\n", "utf-8")

    assert run(tmp_path, "--check") == 1
    assert page.read_text("utf-8") == "stale\n"
    assert "-stale\n+fresh" in capsys.readouterr().out


def test_a_missing_file_fails_the_check(tmp_path: Path) -> None:
    assert run(tmp_path, "--check") == 1


def test_what_was_written_passes_the_check(tmp_path: Path) -> None:
    assert run(tmp_path) == 0
    assert run(tmp_path, "--check") == 0
    assert (tmp_path / "docs/page.md").read_text("utf-8") == "fresh\n"


def test_the_page_is_the_same_whatever_the_hash_seed() -> None:
    # Sets of words come in another order under another seed.
    script = "from tools.lifecycle_page import lifecycle_page; print(lifecycle_page(), end='')"
    pages = {
        subprocess.run(
            [sys.executable, "-c", script],
            cwd=generate.ROOT,
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONUTF8": "1"},
            capture_output=True,
            check=True,
            encoding="utf-8",
        ).stdout
        for seed in ("1", "2")
    }
    assert pages == {lifecycle_page()}


def test_the_page_names_every_operation_state_event_and_rule() -> None:
    page = lifecycle_page()
    for row in TABLE:
        assert f"| {row.operation}" in page
    for state in set(State) - {State.UNKNOWN}:
        assert f"| {state} |" in page
    for kind in set(EventType) - {EventType.UNKNOWN}:
        assert f"| `{kind}` | {kind.code} |" in page
    for rule in RULES:
        column = rule.name.removesuffix("_by_state").removesuffix("_only").removesuffix("_always")
        assert f"| {rule.name} |" in page or f"`{column}`" in page


@pytest.mark.req("C10")
@pytest.mark.parametrize("key", DIALECTS)
def test_the_page_gives_each_event_the_names_that_jobs_really_show(key: str) -> None:
    dialect = DIALECTS[key]
    lived: dict[EventType, set[str]] = {}
    for history in random_histories(3000, seed=11):
        types = {event.rev: event.type for event in history.events}
        for line in dialect.history(history.events):
            if not line.implied or types[line.rev] is EventType.CREATED:
                lived.setdefault(types[line.rev], set()).add(line.event)
    documented = {kind: set(event_names(dialect, kind)) for kind in EventType}
    assert {kind: names for kind, names in documented.items() if names} == lived
