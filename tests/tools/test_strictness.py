"""C16: the types are checked, strictly, and everywhere; a slip does not get through."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tools.check import SOURCES

ROOT = Path(__file__).resolve().parents[2]


def check_types(*paths: str, cache: Path) -> subprocess.CompletedProcess[str]:
    """Run the type checker with the project's settings."""
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(cache), *paths]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.req("C16")
def test_the_law_passes_strict_type_checking(tmp_path: Path) -> None:
    outcome = check_types("src/holdfast/lifecycle", "src/holdfast/ports", cache=tmp_path)
    assert outcome.returncode == 0, outcome.stdout


@pytest.mark.req("C16")
def test_a_type_error_would_be_found(tmp_path: Path) -> None:
    slip = tmp_path / "slip.py"
    slip.write_text("def double(number):\n    return number * 2\n")
    outcome = check_types(str(slip), cache=tmp_path)
    assert "missing a type annotation" in outcome.stdout


@pytest.mark.req("C16")
def test_the_check_covers_sources_and_tests() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert settings["strict"] is True
    assert {"src", "tests", "tools"} <= set(SOURCES)
