"""The policy as this process knows it: read at the start, and when the database shows it changed.

Own to PostgreSQL: on SQLite the one writer reads which rules are applied in its own transaction.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from holdfast.errors import BadPolicy, PolicyChanged
from holdfast.flow.policy_book import compile_book
from holdfast.stores.door import explain_unreadable
from holdfast.stores.postgres.session import PostgresSession
from holdfast.stores.side_tables import POLICY_BOOKS

T = TypeVar("T")
FRESH_SECONDS = 1.0
"""How long rules are used without a look whether they were removed. That others were applied, the
database shows by itself."""
TRIES = 5
"""How often jobs are judged because the rules were changed meanwhile."""


async def read_policy(session: PostgresSession) -> None:
    """Read the rules that are applied; where this process cannot, note why."""
    rows = await session.rows("current_policy")
    known = session.policy
    known.book = known.problem = None
    known.read_at = time.monotonic()
    try:
        known.book = compile_book(POLICY_BOOKS.read(rows[0]).body) if rows else None
    except BadPolicy as error:
        # No reason to fail what brings no new job; the database refuses those that come unjudged.
        known.problem = explain_unreadable(error)


async def freshen_policy(session: PostgresSession) -> None:
    """Read the rules again if they may have been removed; while none are known, do nothing.

    Only births need it.
    """
    known = session.policy
    if known.is_any and time.monotonic() - known.read_at > FRESH_SECONDS:
        await read_policy(session)


async def under_current_policy(session: PostgresSession, work: Callable[[bool], Awaitable[T]]) -> T:
    """Do `work(last try)`, and again by the new rules where the database shows that they changed.

    On its last try the work has to settle by itself what is refused. Where the rules cannot be read
    here, the next try is the last.
    """
    for _ in range(TRIES - 1):
        try:
            return await work(False)
        except PolicyChanged:
            if session.policy.problem is None:
                await read_policy(session)
            if session.policy.problem is not None:
                break
    return await work(True)
