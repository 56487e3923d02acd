"""The plugin that turns a skip into a failure in CI."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SKIPPED_TEST = """
import pytest

@pytest.mark.skip(reason="no such program")
def test_needs_a_program():
    pass
"""
SKIPPED_MODULE = """
import pytest

pytest.skip("no such program", allow_module_level=True)
"""
EXPECTED_FAILURE = """
import pytest

@pytest.mark.xfail(reason="known")
def test_fails_as_known():
    raise AssertionError
"""


def run_pytest(directory: Path, source: str, *, ci: str) -> subprocess.CompletedProcess[str]:
    (directory / "test_sample.py").write_text(source)
    plugins = ["-p", "tests.support.no_skips", "-p", "xdist", "-p", "no:cacheprovider"]
    return subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "-c", os.devnull, "-n", "1", directory],
        env={
            **os.environ,
            "CI": ci,
            "PYTHONPATH": str(ROOT),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("source", [SKIPPED_TEST, SKIPPED_MODULE], ids=["test", "module"])
def test_a_skip_fails_the_run_in_ci_and_gives_its_reason(tmp_path: Path, source: str) -> None:
    run = run_pytest(tmp_path, source, ci="true")

    assert run.returncode != 0
    assert "in CI nothing may be" in run.stdout
    assert "no such program" in run.stdout


def test_a_skip_is_allowed_outside_ci(tmp_path: Path) -> None:
    assert run_pytest(tmp_path, SKIPPED_TEST, ci="").returncode == 0


def test_an_expected_failure_is_not_a_skip(tmp_path: Path) -> None:
    assert run_pytest(tmp_path, EXPECTED_FAILURE, ci="true").returncode == 0
