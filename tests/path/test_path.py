"""The path of a job crosses the modules that `path.txt` lists: those, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.durations import span_micros
from holdfast.ids import mint_id
from tests.path.page import ENGINES, PAGE, read_page, record_apart, rendered
from tests.path.recorder import Recorder

BY_TIMING = ("stores.", "telemetry.")
"""Rooms of which a pass may cross fewer modules: what was just committed together with another
write, or is still known, takes a shorter way."""


@pytest.mark.parametrize("engine", ENGINES)
def test_the_path_crosses_the_modules_that_are_listed_and_no_others(
    engine: str, request: pytest.FixtureRequest, sqlite_path: Path
) -> None:
    url = str(sqlite_path if engine == "sqlite" else request.getfixturevalue("postgres_url"))

    crossed = record_apart(url)

    listed = read_page(PAGE.read_text("utf-8"))[engine]
    for step, modules in crossed.items():
        text = f"{step} on {engine}; `python -m tests.path` writes the list again"
        assert not modules - listed[step], text
        assert not {one for one in listed[step] - modules if not one.startswith(BY_TIMING)}, text


def test_the_list_is_as_it_would_be_written() -> None:
    text = PAGE.read_text("utf-8")

    assert rendered(read_page(text)) == text


def test_what_not_every_pass_crosses_is_beside_the_path() -> None:
    recorder = Recorder()
    with recorder.installed():
        with recorder.step("one"):
            mint_id()
        with recorder.step("one"):
            mint_id()
            span_micros("1s", "a span")
        span_micros("1s", "a span")

    assert recorder.modules() == {"one": {"ids"}}
