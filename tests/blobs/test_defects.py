"""The contract of blobs can fail: each place that is wrong is caught by the tests for it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast.blobs.local import open_local
from holdfast.errors import HoldfastError
from holdfast.testing import BlobContract
from tests.blobs.defects import DEFECTS, WrappedBlobs

TESTS = sorted(name for name in vars(BlobContract) if name.startswith("test_"))


def cases(name: str) -> Iterator[dict[str, Any]]:
    """Return what a test of the contract is run with: all combinations of its parameters."""
    choices = []
    for mark in getattr(getattr(BlobContract, name), "pytestmark", []):
        names = mark.args[0]
        several = not isinstance(names, str)
        choices.append(
            [
                dict(zip(names, one, strict=True)) if several else {names: one}
                for one in mark.args[1]
            ]
        )
    for chosen in itertools.product(*choices):
        yield {key: value for one in chosen for key, value in one.items()}


async def run_test(name: str, kind: type[WrappedBlobs], directory: Path) -> None:
    """Run one test of the contract with each of its parameters, on empty places."""
    for number, parameters in enumerate(cases(name)):
        blobs = kind(open_local(directory / f"{name}-{number}", "store"))
        await getattr(BlobContract(), name)(blobs, **parameters)


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: cast("str", defect.__name__))
async def test_the_contract_catches(defect: type[WrappedBlobs], tmp_path: Path) -> None:
    for name in defect.caught_by:
        with pytest.raises((AssertionError, pytest.fail.Exception, HoldfastError)):
            await run_test(name, defect, tmp_path / defect.__name__)


@pytest.mark.parametrize("name", TESTS)
async def test_the_wrapper_without_a_defect_passes(name: str, tmp_path: Path) -> None:
    await run_test(name, WrappedBlobs, tmp_path)


def test_every_test_of_the_contract_is_failed_by_a_defect() -> None:
    assert sorted({name for defect in DEFECTS for name in defect.caught_by}) == TESTS
