"""Tokens: how they are written, made, listed and revoked.

A token reads `hf_<id>_<secret>`. The id is public; only a digest of the secret is kept. The secret
is 256 random bits, so that a plain SHA-256 is enough: it cannot be guessed.
"""

from __future__ import annotations

import re
from base64 import b32encode
from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from hashlib import sha256

from msgspec import Struct

from holdfast.durations import Instant, WrittenSpan, instant, micros, span_micros
from holdfast.errors import BadData, Forbidden, NoSuchToken, about
from holdfast.ids import mint_secret, mint_token_id
from holdfast.ports.models import NewToken, Token
from holdfast.ports.store import Store

_ID = re.compile(r"[0-9a-f]{20}", re.ASCII)
_WRITTEN = re.compile(r"hf_([0-9a-f]{20})_([a-z2-7]{52})", re.ASCII)


class TokenRole(StrEnum):
    """What a token is for."""

    SUBMITTER = "submitter"
    WORKER = "worker"
    VIEWER = "viewer"
    APPROVER = "approver"
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
    expires: WrittenSpan | None = None
    """How long it is good: text ("30d") or seconds."""
    expires_at: datetime | None = None


class TokenView(Struct, frozen=True, kw_only=True):
    """A token without its secret, which is not kept."""

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
        """Show a token."""
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
    """Return a token's id and the digest of its secret; None if it does not look like a token."""
    found = _WRITTEN.fullmatch(text)
    return None if found is None else (found[1], _digest(found[2]))


def _written(secret: bytes) -> str:
    """Write a secret in letters and digits, so that a double click selects it."""
    return b32encode(secret).decode().rstrip("=").lower()


def _digest(secret: str) -> bytes:
    return sha256(secret.encode()).digest()


class TokenRegistry:
    """Makes, lists and revokes tokens for an actor, which passes on no more than it has."""

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
                queues=self._read_queues(wanted.queues),
                created_by=self._actor,
                lifetime=await self._read_lifetime(wanted),
            )
        )
        return MadeToken(token=f"hf_{id_}_{secret}", about=TokenView.of(kept))

    async def tokens(self, *, before: str | None = None, limit: int = 100) -> list[TokenView]:
        """List tokens, newest first; those of its tenant, for an actor that is bound to one."""
        found = await self._store.tokens(tenant=self._tenant, before=before, limit=limit)
        return [TokenView.of(token) for token in found]

    async def revoke(self, id: str) -> TokenView:
        """End a token for ever; repeating is success."""
        # What cannot be an id is treated as one that does not exist.
        known = (await self._store.look_up_tokens([id]))[0] if _ID.fullmatch(id) else None
        if known is None or self._tenant not in (None, known.tenant):
            raise NoSuchToken(f"no token {id!r}")
        self._check_queues(known.queues)
        revoked = await self._store.revoke_token(id, actor=self._actor)
        assert revoked is not None
        return TokenView.of(revoked)

    def _tenant_of(self, asked: str | None) -> str | None:
        if self._tenant is not None and asked not in (None, self._tenant):
            raise Forbidden(f"this token may only make tokens of tenant {self._tenant!r}")
        return asked if self._tenant is None else self._tenant

    def _read_queues(self, asked: list[str] | None) -> tuple[str, ...] | None:
        if asked is None:
            return None if self._queues is None else tuple(sorted(self._queues))
        self._check_queues(asked)
        return tuple(asked)

    def _check_queues(self, queues: Sequence[str] | None) -> None:
        if self._queues is not None and not (queues and self._queues.issuperset(queues)):
            mine = ", ".join(sorted(self._queues))
            raise Forbidden(f"this token may only manage tokens for {mine}")

    async def _read_lifetime(self, wanted: WantedToken) -> int | None:
        if wanted.expires_at is not None:
            with about("expires_at"):
                if wanted.expires is not None:
                    raise BadData("give expires or expires_at, not both")
                if wanted.expires_at.tzinfo is None:
                    raise BadData("expires_at must have a time zone")
                now = (await self._store.clock()).now
                return _lasting(micros(wanted.expires_at) - now)
        if wanted.expires is None:
            return None
        with about("expires"):
            return _lasting(_read_span(wanted.expires))


def _read_span(expires: WrittenSpan) -> int:
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
