"""The tests of the contract of boxes by name, to run them on runtimes that are wrong."""

from __future__ import annotations

import inspect

import pytest

from holdfast.errors import HoldfastError
from holdfast.testing.box_contract import (
    BoxBench,
    BoxContract,
    BoxTrial,
    IsolatedBoxContract,
    LimitedBoxContract,
    RecoverableBoxContract,
    SurvivingBoxContract,
    box_trials,
)

FAILURES = (AssertionError, pytest.fail.Exception, TimeoutError, OSError, HoldfastError)
"""What a test of the contract raises on a runtime that is wrong."""


def tests_of(*contracts: type[BoxContract]) -> dict[str, type[BoxContract]]:
    """Return the tests that contracts add to the ones they extend, with where they are."""
    return {
        name: contract
        for contract in contracts
        for name, function in vars(contract).items()
        if name.startswith("test_") and inspect.iscoroutinefunction(function)
    }


OF_ALL = tests_of(BoxContract, LimitedBoxContract, RecoverableBoxContract)
OF_ISOLATED = tests_of(IsolatedBoxContract)
OF_SURVIVING = tests_of(SurvivingBoxContract)
TESTS = {**OF_ALL, **OF_ISOLATED, **OF_SURVIVING}


async def run_test(name: str, bench: BoxBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run one test of the contract, with what it asks for."""
    trials: list[BoxTrial] = []
    test = getattr(TESTS[name](), name)
    given = {"bench": bench, "trial": box_trials(bench, trials), "monkeypatch": monkeypatch}
    await test(**{each: given[each] for each in inspect.signature(test).parameters})


async def assert_fails(name: str, bench: BoxBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run one test of the contract on a runtime that is wrong: it fails, and does not hang."""
    with pytest.raises(FAILURES) as raised:
        await run_test(name, bench, monkeypatch)
    assert "Timeout (>" not in str(raised.value), "ended by the time limit of pytest"
