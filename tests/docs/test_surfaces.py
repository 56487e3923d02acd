"""The pages about commands, routes, errors and layers list exactly those that exist."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from holdfast import errors as e
from holdfast.cli.main import app
from holdfast.http.app import PAGES
from holdfast.http.endpoints import ENDPOINTS
from holdfast.operations.problems import PROBLEM_KINDS, shown_as
from tests.docs.pages import ROOT, pages
from tests.path.page import ENGINES, PAGE, read_page
from tests.path.steps import SUBMIT, WORK

ROUTE = re.compile(r"`(GET|POST|PUT|DELETE) (/[^`?]*)`")
COMMAND = re.compile(r"`holdfast ([a-z ]+)")
CODES = re.compile(r"^\| ((?:`[a-z_]+`(?:, )?)+) \| (\d{3}) \|", re.MULTILINE)


def page(name: str) -> str:
    """Read a page."""
    return next(one.text for one in pages() if one.name == name)


def commands(group: Any, before: str = "") -> Iterator[str]:
    """Yield the full names of all commands."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}"


def named_commands(text: str) -> set[str]:
    """Return the commands in the tables of a page; those of a group share a cell."""
    found: set[str] = set()
    for cell in re.findall(r"^\| (`holdfast [^|]*) \|", text, re.MULTILINE):
        words = re.findall(r"`([^`]*)`", cell)
        first = re.sub(r"(holdfast | [A-Z\[].*)", "", words[0])
        group = first.rpartition(" ")[0]
        found |= {first, *(f"{group} {word}" for word in words[1:])}
    return found


def test_the_page_about_the_command_line_names_all_commands() -> None:
    assert named_commands(page("docs/cli.md")) == set(commands(typer.main.get_group(app)))


def test_the_page_about_http_names_all_routes() -> None:
    # A HEAD goes with its GET.
    served = {(one.method, one.path) for one in (*ENDPOINTS, *PAGES) if one.method != "HEAD"}
    assert set(ROUTE.findall(page("docs/http.md"))) == served


def test_the_page_about_http_names_the_code_and_status_of_every_error() -> None:
    kinds = set(PROBLEM_KINDS) | set(e.StoreError.__subclasses__())
    returned = {(kind.code, shown_as(kind())[0]) for kind in kinds}
    listed = [
        (code, int(status))
        for codes, status in CODES.findall(page("docs/http.md"))
        for code in re.findall(r"[a-z_]+", codes)
    ]
    assert sorted(listed) == sorted(returned)


def test_the_page_about_the_layers_names_them_as_the_linter_does() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    [lines] = [one["layers"] for one in contracts if one["id"] == "layers"]
    enforced = [set(re.findall(r"\w+", line)) for line in reversed(lines)]
    cells = re.findall(r"^\| (\*?`[^|]*) \|", page("ARCHITECTURE.md"), re.MULTILINE)
    assert [set(re.findall(r"`(\w+)`", cell)) for cell in cells] == enforced
    unbuilt = {name for cell in cells for name in re.findall(r"\*`(\w+)`\*", cell)}
    package = ROOT / "src" / "holdfast"
    built = {path.stem for path in package.iterdir()}
    assert unbuilt == set().union(*enforced) - built


@pytest.mark.parametrize(
    ("row", "step"), [("submit", SUBMIT), ("claim", WORK), ("run", WORK), ("finish", WORK)]
)
@pytest.mark.parametrize("engine", ENGINES)
def test_the_page_about_the_path_names_modules_that_the_path_crosses(
    row: str, step: str, engine: str
) -> None:
    rows = rf"^\| {row} \| [^|]+ \| ([^|]+) \|"
    [where] = re.findall(rows, page("ARCHITECTURE.md"), re.MULTILINE)
    named = [one.replace("*", engine).replace("/", ".") for one in re.findall(r"`([^`]+)`", where)]
    crossed = read_page(PAGE.read_text("utf-8"))[engine][step]
    assert named
    assert [one for one in named if not {one, f"{one}.__init__"} & crossed] == []


def linked_from(name: str) -> set[str]:
    """Return the pages that a page links to, by their names in the project."""
    source = ROOT / name
    targets = re.findall(r"\]\(([^):#]+\.md)", source.read_text("utf-8"))
    return {str((source.parent / one).resolve().relative_to(ROOT)) for one in targets}


def test_the_front_page_leads_to_every_other_page() -> None:
    indexes = ["docs/README.md", "docs/adr/README.md"]
    assert linked_from("README.md") >= set(indexes)
    reached = set().union(*(linked_from(one) for one in ["README.md", *indexes]))
    assert {one.name for one in pages()} - reached == set()
