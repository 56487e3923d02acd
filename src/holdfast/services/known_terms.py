"""Terms of tasks that workers published, as one process knows them: bounded, and never old.

A submit by name asks here, so that the store is asked once per task and few seconds, not per job.
What is not known yet costs nothing but an event: the worker that claims the job corrects it.
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
from holdfast.ports import Store

log = logging.getLogger(__name__)

LIFE_SECONDS = 5.0
"""How long terms are used before they are read again."""
KNOWN_LIMIT = 1000
"""How many tasks are known at a time: clients choose the names."""

Key: TypeAlias = tuple[str, str]
"""Tenant and task."""


class KnownTerms:
    """A cache of published terms, in front of one store."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        """Know nothing yet."""
        self._store = store
        self._clock = clock
        self._known: OrderedDict[Key, tuple[float, TaskTerms | None]] = OrderedDict()
        self._reading = asyncio.Lock()

    def __len__(self) -> int:
        """Return how many tasks are known, also those of which nothing was published."""
        return len(self._known)

    def get(self, tenant: str, task: str) -> TaskTerms | None:
        """Return what `learn` found for a task; None if nothing is known of it."""
        known = self._known.get((tenant, task))
        return None if known is None else known[1]

    def forget(self, tenant: str | None) -> None:
        """Read a tenant's terms again when they are next asked for; None: those of all."""
        for key in [key for key in self._known if tenant in (None, key[0])]:
            del self._known[key]

    async def learn(self, asked: Iterable[Key], *, required: bool = False) -> None:
        """Read the terms of tasks that are not known, or not any more; one read per tenant.

        A store that does not answer is no reason to refuse a submit: it is corrected later. Where
        they are `required`, its StoreError is raised.
        """
        asked = [key for key in dict.fromkeys(asked) if all(map(_is_name, key))]
        if not self._unknown(asked):
            return
        async with self._reading:
            # Whoever waited finds what the one before it has read.
            for tenant, tasks in self._unknown(asked).items():
                try:
                    found = await self._store.task_terms(tenant, tasks)
                except StoreError as error:
                    if required:
                        raise
                    log.warning("the terms of tasks could not be read: %s", error)
                    return
                for task, terms in zip(tasks, found, strict=True):
                    self._note((tenant, task), terms)

    def _unknown(self, asked: Iterable[Key]) -> dict[str, list[str]]:
        now = self._clock()
        unknown: dict[str, list[str]] = {}
        for tenant, task in asked:
            known = self._known.get((tenant, task))
            if known is None or known[0] <= now:
                unknown.setdefault(tenant, []).append(task)
        return unknown

    def _note(self, key: Key, terms: TaskTerms | None) -> None:
        self._known[key] = (self._clock() + LIFE_SECONDS, terms)
        self._known.move_to_end(key)
        while len(self._known) > KNOWN_LIMIT:
            self._known.popitem(last=False)


def _is_name(text: str) -> bool:
    """Tell whether a job could have such a tenant or task: not every store can be asked for it."""
    try:
        check_text(text, "name", limit=200)
    except BadData:
        return False
    return True
