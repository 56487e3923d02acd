"""Places that requests and streams take: how many one token, and one tenant, may hold at once.

Long polls and streams hold theirs for long; without these bounds one client could hold all.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack

from holdfast.errors import RateLimited
from holdfast.http.scopes import LOCAL, Caller

TOKEN_SHARE, TENANT_SHARE = 4, 2
"""Of all places one token may hold a fourth, and all tokens of one tenant together a half."""


class Places:
    """Counts the places of one kind."""

    def __init__(self, what: str, places: int) -> None:
        """Share out so many `what`."""
        self._what = what
        self._token_places = max(1, places // TOKEN_SHARE)
        self._tenant_places = max(1, places // TENANT_SHARE)
        self._taken: Counter[tuple[str, str]] = Counter()

    def take(self, caller: Caller, at_end: ExitStack) -> None:
        """Take a place until the request ends; RateLimited if the caller holds its share."""
        if caller.token == LOCAL:
            return
        shares = [("token", caller.token, self._token_places)]
        if caller.tenant is not None:
            shares.append(("tenant", caller.tenant, self._tenant_places))
        for kind, name, places in shares:
            if self._taken[kind, name] >= places:
                raise RateLimited(f"this {kind} has {places:,} {self._what} under way, its share")
        for kind, name, _ in shares:
            self._taken[kind, name] += 1
            at_end.callback(self._give_back, (kind, name))

    def _give_back(self, key: tuple[str, str]) -> None:
        self._taken[key] -= 1
        if not self._taken[key]:
            del self._taken[key]
