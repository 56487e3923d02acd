"""Stores between an app and the real one that lose a reply, or let something happen in between."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from holdfast.app.app import Holdfast
from holdfast.errors import LeaseConflictError, StoreUnavailable
from holdfast.lifecycle.plan import PlannedEnd
from holdfast.lifecycle.record import Change
from holdfast.lifecycle.states import EventType
from holdfast.ports.models import Claimed, ClaimRequest, Due, Outcome, PlannedOutcome
from holdfast.ports.store import Store
from holdfast.wiring import make_store, read_address
from tests.crashes.apps import make_app


class Wrapped:
    """A store that does what another one does, but for what a subclass changes."""

    def __init__(self, store: Store) -> None:
        """Stand in front of a store."""
        self.store = store

    def __getattr__(self, name: str) -> Any:
        """All else is the store's."""
        return getattr(self.store, name)

    async def commit_planned(self, ends: Sequence[PlannedEnd]) -> PlannedOutcome:
        """Leave every planned end to `commit`, as a store may: a subclass changes that alone."""
        return PlannedOutcome(0, [end.id for end in ends])


def app_through(url: str, wrap: Callable[[Store], Any]) -> Holdfast:
    """Make the app of these tests, each of whose stores is wrapped."""
    return make_app(store=lambda: wrap(make_store(read_address(url))))


class Loss:
    """Replies that are to be lost, and those that were: over all stores of an app."""

    def __init__(self, kind: EventType | None = None, times: int = 2) -> None:
        """Lose the reply to the first commits with such an event; to claims if there is none."""
        self.kind = kind
        self.left = times
        self.lost = 0

    def strikes(self) -> bool:
        """Lose one more, if there is one left to lose."""
        if self.left <= 0:
            return False
        self.left -= 1
        self.lost += 1
        return True


class LosingReplies(Wrapped):
    """A store whose commits land, and whose callers are not told."""

    def __init__(self, store: Store, loss: Loss) -> None:
        """Lose what `loss` says."""
        super().__init__(store)
        self._loss = loss

    async def commit(self, changes: Sequence[Change]) -> list[Outcome]:
        """Write; then the line is dead."""
        outcomes = await self.store.commit(changes)
        kinds = {change.event.type for change in changes}
        if self._loss.kind in kinds and self._loss.strikes():
            raise StoreUnavailable("the reply was lost")
        return outcomes

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        """Claim; then the line is dead."""
        claimed = await self.store.claim(request)
        if self._loss.kind is None and claimed and self._loss.strikes():
            raise StoreUnavailable("the reply was lost")
        return claimed


class ForgettingClaims(LosingReplies):
    """A store whose claims land, and whose caller is told to forget about them."""

    async def claim(self, request: ClaimRequest) -> list[Claimed]:
        """Claim; the reply says that there is nothing to be had under this request."""
        claimed = await self.store.claim(request)
        if claimed and self._loss.strikes():
            raise LeaseConflictError("the reply was lost, and so was the claim")
        return claimed


class Pausing(Wrapped):
    """A store in which something happens between a sweep's look and its write."""

    def __init__(self, store: Store, between: Callable[[Due], Awaitable[None]]) -> None:
        """Have it happen after each look that found something."""
        super().__init__(store)
        self._between = between

    async def due(self, *, limit: int = 500) -> Due:
        """Look; then let something happen before the answer is used."""
        due = await self.store.due(limit=limit)
        if due.jobs:
            await self._between(due)
        return due
