"""A type checker sees a task's parameters and its result."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_a_wrong_argument_and_a_wrong_result_are_type_errors() -> None:
    """The file marks each expected error; one that were none would be an unused mark."""
    cache = ROOT / ".mypy_cache" / "typing_cases"
    outcome = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--warn-unused-ignores", "--cache-dir", str(cache)),
            "tests/app/typing_cases.py",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stdout
