"""Tokens: who may ask a server for what. Made, listed and revoked by whoever has that say.

A token reads `hf_<id>_<secret>`. The id is public; of the secret only a digest is kept. It is 256
bits of chance, so that a plain SHA-256 is enough: there is nothing to guess.
"""

from __future__ import annotations

import re
from base64 import b32encode
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from hashlib import sha256
from typing import Protocol

from msgspec import Struct

from holdfast.errors import BadData, Forbidden, NoSuchToken, about
from holdfast.identity import mint_secret, mint_token_id
from holdfast.operations import Spoken
from holdfast.ports import NewToken, Store, Token
from holdfast.spans import span_micros
from holdfast.views import Instant, instant, micros

_ID = re.compile(r"[0-9a-f]{20}", re.ASCII)
_WRITTEN = re.compile(r"hf_([0-9a-f]{20})_([a-z2-7]{52})", re.ASCII)


class TokenRole(StrEnum):
    """What a token is for."""

    SUBMITTER = "submitter"
    WORKER = "worker"
    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"


class WantedToken(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A token as it is asked for."""

    name: str
    """Who will use it; with its id the actor of all that it does."""
    role: TokenRole
    tenant: str | None = None
    """None: the maker's own, or all where that is bound to none."""
    queues: list[str] | None = None
    """None: the maker's own, or all where that is bound to none."""
    expires: Spoken | None = None
    """How long it is good: text ("30d") or seconds."""
    expires_at: datetime | None = None


class TokenView(Struct, frozen=True, kw_only=True):
    """A token as it is told: all but its secret, which nobody keeps."""

    id: str
    name: str
    role: str
    tenant: str | None
    queues: tuple[str, ...] | None
    created_at: Instant
    created_by: str
    expires_at: Instant | None
    revoked_at: Instant | None
    revoked_by: str | None

    @classmethod
    def of(cls, token: Token) -> TokenView:
        """Tell a token."""
        return cls(
            id=token.id,
            name=token.name,
            role=token.role,
            tenant=token.tenant,
            queues=token.queues,
            created_at=instant(token.created_at),
            created_by=token.created_by,
            expires_at=_date(token.expires_at),
            revoked_at=_date(token.revoked_at),
            revoked_by=token.revoked_by,
        )


class MadeToken(Struct, frozen=True, kw_only=True):
    """A new token, and the text to send with requests: it is shown this once."""

    token: str
    about: TokenView


class TokenList(Struct, frozen=True, kw_only=True):
    """Tokens, newest first; `next` is the cursor of the page after, null at the end."""

    tokens: list[TokenView]
    next: str | None


def split_token(text: str) -> tuple[str, bytes] | None:
    """Read a token's id and the digest of its secret; None if it has not the form of one."""
    found = _WRITTEN.fullmatch(text)
    return None if found is None else (found[1], _digest(found[2]))


def _written(secret: bytes) -> str:
    """Write a secret in letters and digits, which one double-click selects."""
    return b32encode(secret).decode().rstrip("=").lower()


def _digest(secret: str) -> bytes:
    return sha256(secret.encode()).digest()


class TokenOperations(Protocol):
    """What can be done with tokens, at a store or through a server."""

    async def create(self, wanted: WantedToken) -> MadeToken:
        """Make a token; its secret is in the answer and nowhere else."""

    async def tokens(self, *, before: str | None = None, limit: int = 100) -> list[TokenView]:
        """List tokens, newest first, after an id: those one has a say over."""

    async def revoke(self, id: str) -> TokenView:
        """End a token for ever; repeating is success. NoSuchToken also if it is another's."""


class TokenDesk:
    """Makes, lists and revokes tokens for an actor, who hands on no more than it has."""

    def __init__(
        self,
        store: Store,
        *,
        actor: str,
        tenant: str | None = None,
        queues: frozenset[str] | None = None,
    ) -> None:
        """Act for a tenant and queues; None acts for all."""
        self._store = store
        self._actor = actor
        self._tenant = tenant
        self._queues = queues

    async def create(self, wanted: WantedToken) -> MadeToken:
        """Make a token; its secret is in the answer and nowhere else."""
        id_, secret = mint_token_id(), _written(mint_secret(32))
        kept = await self._store.add_token(
            NewToken(
                id=id_,
                name=wanted.name,
                digest=_digest(secret),
                role=wanted.role.value,
                tenant=self._tenant_of(wanted.tenant),
                queues=self._queues_of(wanted.queues),
                created_by=self._actor,
                lifetime=await self._lifetime(wanted),
            )
        )
        return MadeToken(token=f"hf_{id_}_{secret}", about=TokenView.of(kept))

    async def tokens(self, *, before: str | None = None, limit: int = 100) -> list[TokenView]:
        """List tokens, newest first; to somebody of a tenant, that tenant's."""
        found = await self._store.tokens(tenant=self._tenant, before=before, limit=limit)
        return [TokenView.of(token) for token in found]

    async def revoke(self, id: str) -> TokenView:
        """End a token for ever; repeating is success."""
        # What cannot be an id is one that is not there.
        known = (await self._store.look_up_tokens([id]))[0] if _ID.fullmatch(id) else None
        if known is None or self._tenant not in (None, known.tenant):
            raise NoSuchToken(f"no token {id!r}")
        self._check_queues(known.queues)
        revoked = await self._store.revoke_token(id, actor=self._actor)
        assert revoked is not None
        return TokenView.of(revoked)

    def _tenant_of(self, said: str | None) -> str | None:
        if self._tenant is not None and said not in (None, self._tenant):
            raise Forbidden(f"this token makes tokens of tenant {self._tenant!r} alone")
        return said if self._tenant is None else self._tenant

    def _queues_of(self, said: list[str] | None) -> tuple[str, ...] | None:
        if said is None:
            return None if self._queues is None else tuple(sorted(self._queues))
        self._check_queues(said)
        return tuple(said)

    def _check_queues(self, queues: Sequence[str] | None) -> None:
        if self._queues is not None and not (queues and self._queues.issuperset(queues)):
            mine = ", ".join(sorted(self._queues))
            raise Forbidden(f"this token has a say over tokens for {mine} alone")

    async def _lifetime(self, wanted: WantedToken) -> int | None:
        if wanted.expires_at is not None:
            with about("expires_at"):
                if wanted.expires is not None:
                    raise BadData("give expires or expires_at, not both")
                if wanted.expires_at.tzinfo is None:
                    raise BadData("expires_at must say its time zone")
                now = (await self._store.clock()).now
                return _lasting(micros(wanted.expires_at) - now)
        if wanted.expires is None:
            return None
        with about("expires"):
            return _lasting(_span(wanted.expires))


def _span(expires: Spoken) -> int:
    try:
        return span_micros(expires, "expires")
    except ValueError as error:
        raise BadData(str(error)) from error


def _lasting(lifetime: int) -> int:
    if lifetime <= 0:
        raise BadData("a token must expire later than now")
    return lifetime


def _date(time: int | None) -> Instant | None:
    return None if time is None else instant(time)
