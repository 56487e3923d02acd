"""The contract that every store keeps, as a class of tests with one fixture.

    class TestMyStore(StoreContract):
        @pytest_asyncio.fixture
        async def store(self, tmp_path):
            store = MyStore(tmp_path / "jobs")
            await store.open()
            yield store
            await store.close()

Each test gets a store of its own, empty and open. After each, every job is derived again from its
events and compared with its row, whatever the test was about. No test sleeps or moves a clock:
leases that must have passed are a microsecond long.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from holdfast.ports import Store
from holdfast.testing.contract.announcing import Announcing
from holdfast.testing.contract.bad_data import BadValues
from holdfast.testing.contract.choosing import Choosing
from holdfast.testing.contract.claiming import Claiming
from holdfast.testing.contract.clock import KeepingTime
from holdfast.testing.contract.committing import Committing
from holdfast.testing.contract.contending import Contending
from holdfast.testing.contract.families import Families
from holdfast.testing.contract.fencing import Fencing
from holdfast.testing.contract.folding import Folding
from holdfast.testing.contract.keeping import Keeping
from holdfast.testing.contract.keys import Keys
from holdfast.testing.contract.limits import Limiting
from holdfast.testing.contract.living import Living
from holdfast.testing.contract.locking import Locking
from holdfast.testing.contract.logs import KeepingLogs
from holdfast.testing.contract.operations import Operations
from holdfast.testing.contract.purging import Purging
from holdfast.testing.contract.quarantine import Quarantining
from holdfast.testing.contract.reading import Reading
from holdfast.testing.contract.signals import KeepingSignals
from holdfast.testing.contract.submitting import Submitting
from holdfast.testing.contract.summing import Summing
from holdfast.testing.contract.sweeping import Sweeping
from holdfast.testing.contract.task_terms import PublishingTerms
from holdfast.testing.contract.tokens import Tokens
from holdfast.testing.contract.webhooks import Webhooks
from holdfast.testing.invariants import assert_invariants


class StoreContract(
    Submitting,
    Keys,
    KeepingTime,
    Claiming,
    Choosing,
    Committing,
    Contending,
    Locking,
    Fencing,
    Folding,
    Operations,
    KeepingSignals,
    Living,
    Reading,
    Sweeping,
    Quarantining,
    Purging,
    Summing,
    Limiting,
    Keeping,
    Announcing,
    PublishingTerms,
    Webhooks,
    KeepingLogs,
    Tokens,
    Families,
    BadValues,
):
    """All that a store owes. Subclass it and give it a fixture `store`."""

    pytestmark = pytest.mark.asyncio

    @pytest_asyncio.fixture(autouse=True)
    async def _ledger_agrees(self, store: Store) -> AsyncIterator[None]:
        yield
        await assert_invariants(store)
