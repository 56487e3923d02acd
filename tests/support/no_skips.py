"""A pytest plugin: with CI set, a skipped test is a failed one.

A test that is skipped on a developer's machine for want of a program says so; in CI everything
is there, and a skip would be a hole that nobody sees.
"""

import os
from collections.abc import Generator

import pytest


def _in_ci() -> bool:
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def _refuse(report: pytest.TestReport | pytest.CollectReport) -> None:
    # An expected failure is also reported as skipped; it did run.
    if report.outcome == "skipped" and not hasattr(report, "wasxfail") and _in_ci():
        report.outcome = "failed"
        report.longrepr = f"skipped, and in CI nothing may be: {_reason(report)}"


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    match report.longrepr:
        case (path, line, reason):
            return f"{path}:{line}: {reason}"
        case other:
            return str(other)


# The reports are changed where they are made, because xdist does not hand a module's skip on to
# the controller. First among the wrappers: the one that knows expected failures has then spoken.


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    _refuse(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    _refuse(report)
    return report
