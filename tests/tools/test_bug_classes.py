"""Every class of bug that bit others has tests, and the page that says so names ones that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/testing.md").read_text("utf-8")
ROWS = re.findall(r"^\| (?!class|---)([^|]+) \| ([^|]+) \|$", PAGE, re.MULTILINE)


def test_all_classes_are_listed_once() -> None:
    classes = [name for name, _ in ROWS]
    assert len(classes) == len(set(classes)) == 19


def test_each_class_names_tests_that_exist() -> None:
    for name, tests in ROWS:
        named = re.findall(r"`([^`]+)::([^`]+)`", tests)
        assert named, f"{name}: no test"
        for path, test in named:
            assert test in _tests_of(ROOT / path), f"{name}: no {test} in {path}"


def _tests_of(file: Path) -> set[str]:
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    tree = ast.walk(ast.parse(file.read_text("utf-8")))
    return {node.name for node in tree if isinstance(node, functions)}
