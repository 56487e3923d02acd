"""Who is who: whether two who act on a job are one person.

An actor that came with a token is named `NAME/TOKEN` in the ledger, and the name of a worker that
came with one starts with it. Two are the same person if either part is the same.
"""

from __future__ import annotations

import re

from holdfast.admission.variables import split_actor
from holdfast.lifecycle.record import Job
from holdfast.ports.store import Store

_TOKEN = re.compile(r"(?<![0-9a-f])[0-9a-f]{20}(?![0-9a-f])")
ANCESTORS = 1000
"""How many parents of a job are looked at; a longer line is refused, not believed."""


def identities(label: str) -> frozenset[str]:
    """Return what an actor is known by, given how the ledger names it."""
    # A worker's name has no role before it, and may have a colon of its own.
    _, name = split_actor(label)
    plain, _, token = name.rpartition("/")
    if plain and _TOKEN.fullmatch(token):
        return frozenset({plain, token})
    return frozenset({name, *_TOKEN.findall(name)})


async def find_submitters(store: Store, job: Job) -> list[str] | None:
    """Return who submitted a job and each of its parents, as the ledger names them.

    None if the line of parents is too long to be looked through.
    """
    labels: list[str] = []
    current: Job | None = job
    while current is not None:
        if len(labels) >= ANCESTORS:
            return None
        [first] = await store.events(current.id, limit=1)
        labels.append(first.actor)
        parent = current.parent_id
        current = None if parent is None else (await store.get([parent], signals=False))[0]
    return labels
