"""Rules as they were applied, by their digest: compiled once, for all who look a decision up."""

from __future__ import annotations

from functools import lru_cache

from holdfast.admission.book import Approval, Book, read_book
from holdfast.lifecycle.record import JobId, LoggedEvent
from holdfast.lifecycle.transitions import HOLDS
from holdfast.ports.store import Jobs, Store

BOOKS = 16
"""Books that are kept compiled: one is applied, and others are on their way out."""


@lru_cache(maxsize=BOOKS)
def compile_book(body: str) -> Book:
    """Return rules, compiled; raise BadPolicy for a text that cannot be read."""
    return read_book(body)


async def current_book(store: Store) -> Book | None:
    """Return the rules that are applied now."""
    applied = await store.policy()
    return None if applied is None else compile_book(applied.body)


async def find_book(store: Store, digest: str | None) -> Book | None:
    """Return the rules with a digest; None if they were never applied."""
    applied = None if digest is None else await store.policy_book(digest)
    return None if applied is None else compile_book(applied.body)


async def find_decision(store: Jobs, id: JobId) -> LoggedEvent | None:
    """Return the event with which rules decided on a job that is not admitted yet; None if none."""
    placed = await store.latest_events(id, HOLDS)
    first = await store.events(id, limit=1)
    return next((event for event in [*placed, *first] if event.facts.rules is not None), None)


async def find_approval(store: Store, decision: LoggedEvent | None, rule: str) -> Approval:
    """Return who may approve by a rule, as the decision has it, or the book that it was made by."""
    if decision is not None and decision.facts.approvers:
        return Approval(
            roles=decision.facts.approvers,
            on_expiry="cancel" if decision.facts.on_expiry == "cancel" else "deny",
        )
    book = None if decision is None else await find_book(store, decision.facts.rules)
    rules = () if book is None else book.rules
    found = (one.approve for one in rules if one.id == rule)
    return next(found, None) or Approval()


def find_reason(book: Book | None, rule: str | None) -> str | None:
    """Return the reason that a rule gives."""
    rules = () if book is None else book.rules
    return next((one.reason for one in rules if one.id == rule), None)
