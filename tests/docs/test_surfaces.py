"""The pages about commands and routes name all of them, and none that is not there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer.main
from fastapi.routing import APIRoute

from holdfast.cli.main import app
from holdfast.http.server import ROUTERS
from tests.docs.pages import pages

ROUTE = re.compile(r"`(GET|POST|PUT|DELETE) (/[^`?]*)`")
COMMAND = re.compile(r"`holdfast ([a-z ]+)")


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
