"""Public help for tests: the kit for an app's own tests, and the contract suite for stores.

Names are imported when they are first asked for: pytest loads this package at every start.
"""

from contextlib import suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.testing.clock import VirtualClock
    from holdfast.testing.contract import StoreContract
    from holdfast.testing.draining import Drained
    from holdfast.testing.faults import Faults, Moment
    from holdfast.testing.hand import NotDrained
    from holdfast.testing.invariants import assert_invariants
    from holdfast.testing.kit import Kit, drain
    from holdfast.testing.submissions import assert_not_submitted, assert_submitted, submitted

__all__ = [
    "Drained",
    "Faults",
    "Kit",
    "Moment",
    "NotDrained",
    "StoreContract",
    "VirtualClock",
    "assert_invariants",
    "assert_not_submitted",
    "assert_submitted",
    "drain",
    "submitted",
]

_HOMES = {
    "Drained": "draining",
    "Faults": "faults",
    "Kit": "kit",
    "Moment": "faults",
    "NotDrained": "hand",
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
        "holdfast.testing.acts", "holdfast.testing.contract", "holdfast.testing.invariants"
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
