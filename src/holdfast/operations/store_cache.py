"""What one process remembers of a store: its limits for a second, the terms of tasks for five.

A submit by name needs the terms, so that the store is read once per task and few seconds, not per
job. Terms that are not known yet cost nothing but an event: the worker that claims the job corrects
it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import TypeAlias

from holdfast.errors import BadData, StoreError
from holdfast.lifecycle.payload import check_text
from holdfast.lifecycle.terms import TaskTerms
from holdfast.ports.models import Limits
from holdfast.ports.store import Store

log = logging.getLogger(__name__)

LIMITS_SECONDS = 1.0
"""How long limits are used before they are read again."""
TERMS_SECONDS = 5.0
"""How long terms are used before they are read again."""
KNOWN_LIMIT = 1000
"""How many tasks are known at a time: clients choose the names."""

TaskKey: TypeAlias = tuple[str, str]
"""Tenant and task."""


class KnownLimits:
    """A cache of a store's limits."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._known = Limits()
        self._until: float | None = None
        self._reading: asyncio.Task[None] | None = None

    async def get(self) -> Limits:
        """Return the limits as they were read last; one read for all concurrent callers."""
        if self._until is None or self._clock() >= self._until:
            if self._reading is None:
                self._reading = asyncio.create_task(self._read_limits())
            # A cancelled caller leaves the read to the others.
            await asyncio.shield(self._reading)
        return self._known

    async def _read_limits(self) -> None:
        try:
            self._known = await self._store.limits()
            self._until = self._clock() + LIMITS_SECONDS
        except StoreError as error:
            # The command that they are for meets the same store, and reports it with its job.
            log.debug("the limits could not be read: %s", error)
        finally:
            self._reading = None


class KnownTerms:
    """A cache of the terms that workers published in a store."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._known: OrderedDict[TaskKey, tuple[float, TaskTerms | None]] = OrderedDict()
        self._reading = asyncio.Lock()

    def __len__(self) -> int:
        """Return how many tasks are known, also those without published terms."""
        return len(self._known)

    def get(self, tenant: str, task: str) -> TaskTerms | None:
        """Return what `learn` found for a task; None if nothing is known of it."""
        known = self._known.get((tenant, task))
        return None if known is None else known[1]

    def forget(self, tenant: str | None) -> None:
        """Read a tenant's terms again when they are next needed; None: those of all."""
        for key in [key for key in self._known if tenant in (None, key[0])]:
            del self._known[key]

    async def learn(self, asked: Iterable[TaskKey], *, required: bool = False) -> None:
        """Read the terms of tasks that are not, or no longer, known; one read per tenant.

        A store that does not answer must not refuse a submit: it is corrected later. Where
        they are `required`, its StoreError is raised.
        """
        unknown = [key for key in self._list_unknown(asked) if all(map(_is_name, key))]
        if not unknown:
            return
        async with self._reading:
            # A caller that waited finds what the one before it has read.
            for tenant, tasks in _by_tenant(self._list_unknown(unknown)).items():
                try:
                    found = await self._store.task_terms(tenant, tasks)
                except StoreError as error:
                    if required:
                        raise
                    log.warning("the terms of tasks could not be read: %s", error)
                    return
                for task, terms in zip(tasks, found, strict=True):
                    self._remember((tenant, task), terms)

    def _list_unknown(self, asked: Iterable[TaskKey]) -> list[TaskKey]:
        now = self._clock()
        known = self._known
        unread = (key for key in asked if key not in known or known[key][0] <= now)
        return list(dict.fromkeys(unread))

    def _remember(self, key: TaskKey, terms: TaskTerms | None) -> None:
        self._known[key] = (self._clock() + TERMS_SECONDS, terms)
        self._known.move_to_end(key)
        while len(self._known) > KNOWN_LIMIT:
            self._known.popitem(last=False)


def _by_tenant(keys: Iterable[TaskKey]) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = {}
    for tenant, task in keys:
        grouped.setdefault(tenant, []).append(task)
    return grouped


def _is_name(text: str) -> bool:
    """Return whether a job could have such a tenant or task: not every store accepts others."""
    try:
        check_text(text, "name", limit=200)
    except BadData:
        return False
    return True
