"""How many requests or streams one token, and one tenant, may have at once.

Long polls and streams last long; without these limits one client could take all.
"""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack

from holdfast.auth.authorization import LOCAL, Caller
from holdfast.errors import RateLimited

TOKEN_SHARE, TENANT_SHARE = 4, 2
"""One token may have a fourth of all, and all tokens of one tenant together a half."""


class ConcurrencyLimit:
    """Counts what runs at once of one kind."""

    def __init__(self, what: str, limit: int) -> None:
        """Allow `limit` of `what` at once."""
        self._what = what
        self._token_limit = max(1, limit // TOKEN_SHARE)
        self._tenant_limit = max(1, limit // TENANT_SHARE)
        self._taken: Counter[tuple[str, str]] = Counter()

    def take(self, caller: Caller, at_end: ExitStack) -> None:
        """Count one until the request ends; RateLimited if the caller has its share already."""
        if caller.token == LOCAL:
            return
        shares = [("token", caller.token, self._token_limit)]
        if caller.tenant is not None:
            shares.append(("tenant", caller.tenant, self._tenant_limit))
        for kind, name, limit in shares:
            if self._taken[kind, name] >= limit:
                raise RateLimited(f"this {kind} has {limit:,} {self._what} under way, its share")
        for kind, name, _ in shares:
            self._taken[kind, name] += 1
            at_end.callback(self._give_back, (kind, name))

    def _give_back(self, key: tuple[str, str]) -> None:
        self._taken[key] -= 1
        if not self._taken[key]:
            del self._taken[key]
