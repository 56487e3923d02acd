"""The points of the code at which a test may let a process die, read from the code itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "holdfast"


COMMANDS = ("box.", "boxes.", "room.", "files.", "agent.", "log.", "artifacts.")
"""What the names of points start with that only commands reach."""
CLEANING = "clean."
"""The same for cleaning, which no worker does."""
BUS = "bus."
"""The same for a bridge."""


def named_points() -> tuple[str, ...]:
    """Every name that is reached on the way of a function."""
    return tuple(name for name in _all_points() if not name.startswith((*COMMANDS, CLEANING, BUS)))


def command_points() -> tuple[str, ...]:
    """Every name that is reached on the way of a command alone."""
    return tuple(name for name in _all_points() if name.startswith(COMMANDS))


def cleaning_points() -> tuple[str, ...]:
    """Every name that is reached while the outputs of a job are erased."""
    return tuple(name for name in _all_points() if name.startswith(CLEANING))


def bus_points() -> tuple[str, ...]:
    """Every name that a bridge reaches."""
    return tuple(name for name in _all_points() if name.startswith(BUS))


@cache
def _all_points() -> tuple[str, ...]:
    """Every name that is reached somewhere; fails on one that cannot be read off the code."""
    return tuple(sorted({name for file in SOURCE.rglob("*.py") for name in _points_of(file)}))


def _points_of(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.Call) or not _is_reach(node.func):
            continue
        assert len(node.args) == 1, f"{file.name}:{node.lineno}: reach() takes one name"
        name = node.args[0]
        assert isinstance(name, ast.Constant), f"{file.name}:{node.lineno}: not a literal name"
        assert isinstance(name.value, str), f"{file.name}:{node.lineno}: not a literal name"
        yield name.value


def _is_reach(function: ast.expr) -> bool:
    return isinstance(function, ast.Name) and function.id == "reach"
