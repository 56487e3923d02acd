"""Tokens as rows: what may be kept of one, how it is written, and how it is read back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.errors import BadData, about
from holdfast.lifecycle.payload import check_number, check_text
from holdfast.lifecycle.times import SECOND
from holdfast.ports import NewToken, Token

QUEUES_LIMIT = 50
"""How many queues a token may be for."""
LIFETIME_LIMIT = 100 * 365 * 24 * 3600 * SECOND
"""What is to last longer is not to expire."""
NEWEST = "~"
"""Higher than any id."""


def token_row(token: NewToken) -> tuple[Any, ...]:
    """Write id, name, digest, role, tenant, queues, maker and lifetime; refuse what is unfit."""
    check_id(token.id)
    with about("name"):
        check_text(token.name, "the token's name", limit=100)
    with about("role"):
        check_text(token.role, "role", limit=20)
    check_actor(token.created_by)
    if token.tenant is not None:
        with about("tenant"):
            check_text(token.tenant, "tenant", limit=200)
    if type(token.digest) is not bytes or len(token.digest) != 32:
        raise BadData("a token's digest must be 32 bytes of SHA-256")
    if token.lifetime is not None:
        check_number(token.lifetime, "a token's lifetime", high=LIFETIME_LIMIT)
    with about("queues"):
        queues = None if token.queues is None else _queues_text(token.queues)
    return (
        token.id,
        token.name,
        token.digest,
        token.role,
        token.tenant,
        queues,
        token.created_by,
        token.lifetime,
    )


def check_id(id: str) -> str:
    """Check a token's id: ASCII, so that its order is the same everywhere."""
    check_text(id, "the token's id", limit=40)
    if not (id.isascii() and id.isalnum()):
        raise BadData(f"a token's id must be ASCII letters and digits, not {id!r}")
    return id


def check_actor(actor: str) -> str:
    """Check the name of who makes or revokes a token."""
    return check_text(actor, "actor", limit=200)


def _queues_text(queues: tuple[str, ...]) -> str:
    if type(queues) is not tuple or not queues:
        raise BadData("a token's queues must be a tuple of at least one name; None is for all")
    if len(queues) > QUEUES_LIMIT:
        raise BadData(f"a token for {len(queues):,} queues; the limit is {QUEUES_LIMIT}")
    names = sorted({check_text(queue, "a queue's name", limit=200) for queue in queues})
    return msgspec.json.encode(names).decode()


def read_token(row: Sequence[Any]) -> Token:
    """Read a row of the statements `tokens` and `look_up_tokens`."""
    id, name, digest, role, tenant, queues, *rest = row
    created_at, created_by, expires_at, revoked_at, revoked_by = rest
    return Token(
        id=id,
        name=name,
        digest=bytes(digest),
        role=role,
        tenant=tenant,
        queues=None if queues is None else tuple(msgspec.json.decode(queues)),
        created_at=created_at,
        created_by=created_by,
        expires_at=expires_at,
        revoked_at=revoked_at,
        revoked_by=revoked_by,
    )
