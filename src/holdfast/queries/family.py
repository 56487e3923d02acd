"""Families as they are read: the children of jobs, and the next tries of children that ended.

Parents may have very many children: they are read in pages, few of each parent at first.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TypeAlias

from holdfast.errors import StoreError
from holdfast.lifecycle.family import awaits, may_go_on
from holdfast.lifecycle.record import Job, JobId
from holdfast.ports.store import Store
from holdfast.queries.outcomes import find_linked_retry, last_event

FIRST_PAGE, NEXT_PAGE = 20, 500
"""Children of each parent that are read at first, and then at a time."""
Read: TypeAlias = Callable[[Sequence[JobId]], Awaitable[list[Job]]]


class FamilyReader:
    """Reads families; a row that cannot be read hides none of the others."""

    def __init__(self, store: Store, failed: dict[JobId, str]) -> None:
        """Read from `store`; jobs that cannot be read are added to `failed`, with the reason."""
        self._store = store
        self._failed = failed

    async def jobs(self, ids: Sequence[JobId]) -> list[Job]:
        """Read jobs; those that are gone are left out."""
        return await self._read_each_if_damaged(self._get, ids)

    async def _get(self, ids: Sequence[JobId]) -> list[Job]:
        return [job for job in await self._store.get(ids) if job is not None]

    async def _read_each_if_damaged(self, read: Read, ids: Sequence[JobId]) -> list[Job]:
        """Read for all at once; where a row cannot be read, for each by itself."""
        if not ids:
            return []
        try:
            return await read(ids)
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - one poison row must not stop the others
            if len(ids) == 1:
                self._failed[ids[0]] = repr(error)
                return []
        return [job for id_ in ids for job in await self._read_each_if_damaged(read, [id_])]

    async def read_page(
        self,
        parents: Sequence[JobId],
        *,
        live_only: bool = False,
        after: JobId | None = None,
        size: int | None = None,
    ) -> list[Job]:
        """Read at most `size` children of each of these parents, oldest first."""
        size = FIRST_PAGE if size is None else size
        read = partial(self._store.children, live_only=live_only, after=after, limit=size)
        return await self._read_each_if_damaged(read, parents)

    async def children(
        self, parents: Sequence[JobId], *, size: int | None = None
    ) -> AsyncIterator[list[Job]]:
        """Read all children of these parents in pages; `size` of each parent at first."""
        size = FIRST_PAGE if size is None else size
        first = await self.read_page(parents, size=size)
        yield first
        for parent, page in group_by_parent(first).items():
            full = size
            while len(page) == full:
                full = NEXT_PAGE
                page = await self.read_page([parent], after=page[-1].id, size=full)  # noqa: PLW2901
                yield page

    async def next_tries(self, job: Job) -> list[Job]:
        """Follow a job that lives on in linked retries (A16), to the last of them."""
        return (
            await self._read_each_if_damaged(self._read_next_tries, [job.id])
            if may_go_on(job)
            else []
        )

    async def _read_next_tries(self, ids: Sequence[JobId]) -> list[Job]:
        tries: list[Job] = []
        id_ = ids[0]
        # By the event that ended the job: among its links it may be far behind newer ones.
        while again := await find_linked_retry(self._store, await last_event(self._store, id_)):
            tries.append(again)
            id_ = again.id
        return tries

    async def find_live_tries(self, parents: Sequence[Job]) -> dict[JobId, list[Job]]:
        """Find, by parent, live jobs that are the next try of a child that has ended."""
        found: dict[JobId, list[Job]] = {}
        async for page in self.children([parent.id for parent in parents], size=NEXT_PAGE):
            for child in filter(may_go_on, page):
                last = (await self.next_tries(child))[-1:]
                parent = child.parent_id or child.id
                if child.id in self._failed:
                    self._failed[parent] = self._failed[child.id]
                found.setdefault(parent, []).extend(one for one in last if not one.terminal)
        return found


async def list_awaited(store: Store, parent: Job, *, limit: int = 1000) -> list[Job]:
    """List the live children that a waiting parent waits for, oldest first, or their next tries."""
    live = await store.children([parent.id], live_only=True, limit=limit)
    found = [child for child in live if awaits(parent.wait_for, child)]
    if found:
        return found
    tries = await FamilyReader(store, {}).find_live_tries([parent])
    return [job for job in tries.get(parent.id, []) if awaits(parent.wait_for, job)]


def group_by_parent(children: Iterable[Job]) -> dict[JobId, list[Job]]:
    """Sort children by whose they are."""
    found: dict[JobId, list[Job]] = {}
    for child in children:
        if child.parent_id is not None:
            found.setdefault(child.parent_id, []).append(child)
    return found
