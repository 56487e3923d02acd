"""Public help for tests: the kit of an app's tests, contracts of stores, runners, boxes, blobs.

Names are imported when they are first asked for: pytest loads this package at every start.
"""

from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.testing.blob_contract import BlobContract
    from holdfast.testing.box_contract import BoxBench, BoxContract
    from holdfast.testing.clock import VirtualClock
    from holdfast.testing.contract import StoreContract
    from holdfast.testing.faults import Faults, Moment
    from holdfast.testing.invariants import assert_invariants
    from holdfast.testing.kit import Kit, drain
    from holdfast.testing.run_due import Drained
    from holdfast.testing.runner_contract import RunnerContract
    from holdfast.testing.submissions import assert_not_submitted, assert_submitted, submitted
    from holdfast.testing.worker import NotDrained

__all__ = [
    "BlobContract",
    "BoxBench",
    "BoxContract",
    "Drained",
    "Faults",
    "Kit",
    "Moment",
    "NotDrained",
    "RunnerContract",
    "StoreContract",
    "VirtualClock",
    "assert_invariants",
    "assert_not_submitted",
    "assert_submitted",
    "drain",
    "submitted",
]

_HOMES = {
    "BlobContract": "blob_contract",
    "BoxBench": "box_contract",
    "BoxContract": "box_contract",
    "Drained": "run_due",
    "Faults": "faults",
    "Kit": "kit",
    "Moment": "faults",
    "NotDrained": "worker",
    "RunnerContract": "runner_contract",
    "StoreContract": "contract",
    "VirtualClock": "clock",
    "assert_invariants": "invariants",
    "assert_not_submitted": "submissions",
    "assert_submitted": "submissions",
    "drain": "kit",
    "submitted": "submissions",
}

# The kit works without pytest too.
with suppress(ModuleNotFoundError):
    import pytest

    # Before they are imported, so that a failed assert in them shows its values.
    pytest.register_assert_rewrite(
        "holdfast.testing.blob_contract",
        "holdfast.testing.box_contract",
        "holdfast.testing.store_actions",
        "holdfast.testing.contract",
        "holdfast.testing.invariants",
        "holdfast.testing.runner_contract",
    )


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        home = import_module(f"{__name__}.{_HOMES[name]}")
    except ModuleNotFoundError as error:
        if error.name not in ("pytest", "pytest_asyncio"):
            raise
        raise ModuleNotFoundError(
            f"holdfast.testing.{name} needs {error.name}: pip install 'holdfast[testing]'",
            name=error.name,
        ) from error
    return getattr(home, name)
