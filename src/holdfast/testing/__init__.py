"""Public help for tests: the contract of a store, factories, and the invariants of a ledger."""

import pytest

# Before they are imported, so that a failed assert in them shows its values.
pytest.register_assert_rewrite(
    "holdfast.testing.acts", "holdfast.testing.contract", "holdfast.testing.invariants"
)

from holdfast.testing.contract import StoreContract  # noqa: E402  see above
from holdfast.testing.invariants import assert_invariants  # noqa: E402  see above

__all__ = ["StoreContract", "assert_invariants"]
