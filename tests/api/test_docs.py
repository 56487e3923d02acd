"""The page on tasks names everything that can be said of one."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import holdfast
from holdfast.options import JobOptions, TaskOptions

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tasks.md").read_text()


@pytest.mark.parametrize("options", [TaskOptions, JobOptions])
def test_every_option_is_on_the_page(options: type) -> None:
    missing = [name for name in options.__annotations__ if f"`{name}`" not in PAGE]
    assert [name for name in missing if f"`{name}=" not in PAGE] == []


def test_the_pages_code_is_python_and_imports_what_there_is() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert blocks
    for block in blocks:
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module == "holdfast":
                assert {name.name for name in node.names} <= set(holdfast.__all__)
