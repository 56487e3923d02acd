"""The pages about commands and routes name all of them, and none that is not there."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Any

import typer.main
from fastapi.routing import APIRoute

from holdfast import errors as e
from holdfast.cli.main import app
from holdfast.http.problems import VERDICTS, verdict_of
from holdfast.http.server import ROUTERS
from tests.docs.pages import ROOT, pages

ROUTE = re.compile(r"`(GET|POST|PUT|DELETE) (/[^`?]*)`")
COMMAND = re.compile(r"`holdfast ([a-z ]+)")
CODES = re.compile(r"^\| ((?:`[a-z_]+`(?:, )?)+) \| (\d{3}) \|", re.MULTILINE)


def page(name: str) -> str:
    """Read a page."""
    return next(one.text for one in pages() if one.name == name)


def commands(group: Any, before: str = "") -> Iterator[str]:
    """Tell all commands by their whole names."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}"


def named_commands(text: str) -> set[str]:
    """Tell the commands that a page's tables name; those of a group share a cell."""
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
    routes = [route for router in ROUTERS for route in router.routes]
    served = {
        (method, route.path)
        for route in routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }
    assert set(ROUTE.findall(page("docs/http.md"))) == served


def test_the_page_about_http_names_the_code_and_status_of_every_error() -> None:
    kinds = {kind for kind, _ in VERDICTS} | set(e.StoreError.__subclasses__())
    answered = {(kind.code, verdict_of(kind()).status) for kind in kinds}
    told = [
        (code, int(status))
        for codes, status in CODES.findall(page("docs/http.md"))
        for code in re.findall(r"[a-z_]+", codes)
    ]
    assert sorted(told) == sorted(answered)


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


def test_the_front_page_leads_to_every_other_page() -> None:
    linked = set(re.findall(r"\]\((docs/[^)#]+)\)", page("README.md")))
    shown = {one.name for one in pages() if one.name.startswith("docs/")}
    assert {name for name in shown - linked if not name.startswith("docs/adr/")} == set()
