"""The rules of the tree: each is broken once here, and must be noticed."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from tools.prose import flagged, in_code, in_help, in_page, in_sql
from tools.tree import (
    ceiling_problems,
    class_problems,
    gerund_problems,
    lines_by_room,
    lowered,
    problems,
    top_level_problems,
)

ROOT = Path(__file__).resolve().parents[2]


def package_with(tmp_path: Path, *names: str, text: str = "") -> Path:
    """Make a package that has these modules."""
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_the_tree_keeps_to_its_rules() -> None:
    assert list(problems(ROOT)) == []


def test_an_eighth_module_at_the_top_level_is_refused(tmp_path: Path) -> None:
    package = package_with(tmp_path, *(f"m{number}.py" for number in range(8)))
    assert "8 modules at the top level" in next(top_level_problems(package))


@pytest.mark.parametrize("name", ["asking.py", "flow/key_waiting.py", "running/__init__.py"])
def test_a_gerund_is_refused_as_the_name_of_a_module(tmp_path: Path, name: str) -> None:
    assert len(list(gerund_problems(package_with(tmp_path, name)))) == 1


def test_the_fields_own_nouns_are_not_taken_for_gerunds(tmp_path: Path) -> None:
    package = package_with(tmp_path, "wiring.py", "telemetry/tracing.py", "http/query_string.py")
    assert list(gerund_problems(package)) == []


def test_a_class_name_in_two_places_is_refused(tmp_path: Path) -> None:
    package = package_with(tmp_path, "a/x.py", "b/y.py", text="class Held: ...\n")
    assert "class Held is defined 2 times" in next(class_problems(package))


def test_a_folder_that_grows_above_its_ceiling_is_refused(tmp_path: Path) -> None:
    lines = lines_by_room(package_with(tmp_path, "flow/submit.py", text="1\n2\n3\n"))
    assert lines == {"flow": 3}
    assert list(ceiling_problems({"lines": {"flow": 3}}, {"lines": lines})) == []
    assert "lines of flow: 3, at most 2" in next(
        ceiling_problems({"lines": {"flow": 2}}, {"lines": lines})
    )


def test_a_folder_without_a_ceiling_is_refused() -> None:
    assert list(ceiling_problems({}, {"words": {"flow": 1}}))


def test_ceilings_are_lowered_and_never_raised() -> None:
    text = lowered({"lines": {"a": 5, "b": 5}}, {"lines": {"a": 3, "b": 9}})
    assert "a = 3" in text
    assert "b = 5" in text


@pytest.mark.parametrize(
    "text",
    [
        "what it told us",
        "Whoever asks",
        "'x' is no port",
        "role 'y' has it not",
        "unfit input: mend it",
        "after so many tries",
    ],
)
def test_prose_that_has_to_be_decoded_is_flagged(text: str) -> None:
    assert list(flagged(text))


@pytest.mark.parametrize(
    "text",
    ["there is no such job", "it is no longer live", "as long as it runs", "BEGIN IMMEDIATE"],
)
def test_plain_prose_is_not_flagged(text: str) -> None:
    assert list(flagged(text)) == []


@pytest.mark.parametrize(
    "text", ["Of two jobs, one ends", "it goes on", "it goes\n    on", "a parked job", "done anew"]
)
def test_prose_is_held_to_more_than_names(text: str) -> None:
    assert list(flagged(text, is_name=True)) == []
    assert list(flagged(text))


def test_prose_of_code_is_held_to_more_than_its_names() -> None:
    code = 'mint_id = parked  # done anew\n"""It goes\n    on."""\nf"{parked.at} for good"\n'
    assert [word for _, word, _ in in_code(code)] == ["anew", "goes on", "for good"]


def test_comments_of_sql_and_help_are_held_to_it_too() -> None:
    assert [word for _, word, _ in in_sql("SELECT 1 -- '' stands for all\n")] == ["stands for"]
    app = typer.Typer(help="Jobs that run go on.")

    @app.callback(invoke_without_command=True)
    def only() -> None: ...

    assert [word for _, word, _ in in_help(app)] == ["go on"]


def test_words_are_found_in_names_strings_and_comments_of_code() -> None:
    code = 'told_faults = 1  # whoever\nclass SayStart: """Mend it."""\n'
    assert [word.lower() for _, word, _ in in_code(code)] == ["told", "whoever", "say", "mend"]


def test_names_that_clients_know_are_not_flagged_in_code() -> None:
    code = 'tags = ("say", "begun", "parked")  # `unfit` is a kind\ntext = "begun and done"\n'
    assert [(line, word) for line, word, _ in in_code(code)] == [(2, "begun")]


def test_words_are_found_in_comments_of_sql_and_not_in_statements() -> None:
    assert [line for line, _, _ in in_sql("SELECT told\n-- as told\n")] == [2]


def test_words_are_found_on_pages_outside_code() -> None:
    page = "It says so.\n```py\ntold = 1\n```\nand `told` is code\n<!-- as told -->\n"
    assert [line for line, _, _ in in_page(page)] == [1]


def test_words_are_found_in_the_help_of_commands() -> None:
    app = typer.Typer()

    @app.command()
    def first() -> None:
        """Say hello."""

    @app.command()
    def second(name: str = typer.Option("", help="Whoever it is.")) -> None:
        """Print it."""

    assert [(path, word) for path, word, _ in in_help(app)] == [
        ("holdfast first", "Say"),
        ("holdfast second", "Whoever"),
    ]
