"""Submits whose key is held by an open transaction: each waits outside the batches.

The transaction is a caller's own (`task.submit_in`), and may take long. Until it ends it is not
known whether the key is taken; but only submits with this key have to wait for that.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias
from weakref import WeakValueDictionary

from holdfast.errors import KeyBusy
from holdfast.lifecycle.record import NewJob
from holdfast.ports.models import SubmitOutcome, SubmitRefused

WAIT_SECONDS = 30.0
"""How long a submit waits behind others that want the same key."""
Name: TypeAlias = tuple[str, int, str]


class KeyWaits:
    """Waits for keys, one submit for each key at a time."""

    def __init__(
        self, submit: Callable[[Sequence[NewJob]], Awaitable[list[SubmitOutcome]]]
    ) -> None:
        """Submit by `submit`, the store's own, which waits for the key of a single job."""
        self._submit = submit
        self._waiting: Counter[Name] = Counter()
        # Each lock lives as long as a submit waits for it.
        self._turns: WeakValueDictionary[Name, asyncio.Lock] = WeakValueDictionary()

    def wanted(self, job: NewJob) -> bool:
        """Return whether a submit waits for a key of this job already."""
        return bool(self._waiting) and any(self._waiting[name] > 0 for name in _names(job))

    async def submit(self, job: NewJob) -> SubmitOutcome:
        """Submit one job once its keys are free or taken, or the wait for them is over."""
        names = _names(job)
        self._waiting.update(names)
        try:
            lock = self._turns.setdefault(names[0], asyncio.Lock())
            try:
                async with asyncio.timeout(WAIT_SECONDS):
                    await lock.acquire()
            except TimeoutError:
                return _refuse_still_busy(job)
            try:
                return (await self._submit([job]))[0]
            finally:
                lock.release()
        finally:
            self._waiting.subtract(names)
            self._waiting = +self._waiting


def is_busy(outcome: SubmitOutcome) -> bool:
    """Return whether a submit was refused only because its key's transaction has not ended."""
    return isinstance(outcome, SubmitRefused) and outcome.code == KeyBusy.code


def _names(job: NewJob) -> list[Name]:
    return [(job.record.tenant, key.kind, key.key) for key in job.keys]


def _refuse_still_busy(job: NewJob) -> SubmitRefused:
    keys = ", ".join(repr(key.key) for key in job.keys)
    return SubmitRefused(
        code=KeyBusy.code,
        message=f"{keys}: held by an open transaction, and other submits wait for it, too; nothing "
        "was submitted, retry once it has ended",
    )
