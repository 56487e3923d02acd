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

from holdfast.ports.store import Store
from holdfast.testing.contract.bad_data import BadDataContract
from holdfast.testing.contract.claim import ClaimContract
from holdfast.testing.contract.claim_order import ClaimOrderContract
from holdfast.testing.contract.clock import ClockContract
from holdfast.testing.contract.commit import CommitContract
from holdfast.testing.contract.concurrency import ConcurrencyContract
from holdfast.testing.contract.counts import CountContract
from holdfast.testing.contract.due import DueContract
from holdfast.testing.contract.families import FamilyContract
from holdfast.testing.contract.fences import FenceContract
from holdfast.testing.contract.folds import FoldContract
from holdfast.testing.contract.holds import HoldContract
from holdfast.testing.contract.keys import KeyContract
from holdfast.testing.contract.limits import LimitContract
from holdfast.testing.contract.locks import LockContract
from holdfast.testing.contract.logs import LogContract
from holdfast.testing.contract.notes import NoteContract
from holdfast.testing.contract.operations import OperationContract
from holdfast.testing.contract.planned import PlannedContract
from holdfast.testing.contract.policies import PolicyContract
from holdfast.testing.contract.purge import PurgeContract
from holdfast.testing.contract.quarantine import QuarantineContract
from holdfast.testing.contract.read import ReadContract
from holdfast.testing.contract.retention import RetentionContract
from holdfast.testing.contract.signals import SignalContract
from holdfast.testing.contract.submit import SubmitContract
from holdfast.testing.contract.task_terms import TaskTermsContract
from holdfast.testing.contract.tokens import TokenContract
from holdfast.testing.contract.uploads import UploadContract
from holdfast.testing.contract.webhooks import WebhookContract
from holdfast.testing.contract.whole_lives import WholeLifeContract
from holdfast.testing.contract.workers import WorkerContract
from holdfast.testing.invariants import assert_invariants


class StoreContract(
    SubmitContract,
    KeyContract,
    HoldContract,
    PolicyContract,
    ClockContract,
    ClaimContract,
    ClaimOrderContract,
    CommitContract,
    ConcurrencyContract,
    LockContract,
    FenceContract,
    FoldContract,
    PlannedContract,
    OperationContract,
    SignalContract,
    WholeLifeContract,
    ReadContract,
    DueContract,
    QuarantineContract,
    PurgeContract,
    CountContract,
    LimitContract,
    RetentionContract,
    WorkerContract,
    TaskTermsContract,
    WebhookContract,
    UploadContract,
    NoteContract,
    LogContract,
    TokenContract,
    FamilyContract,
    BadDataContract,
):
    """All that a store owes. Subclass it and give it a fixture `store`."""

    pytestmark = pytest.mark.asyncio

    @pytest_asyncio.fixture(autouse=True)
    async def _ledger_agrees(self, store: Store) -> AsyncIterator[None]:
        yield
        await assert_invariants(store)
