"""Tokens: kept as they were given, good by the store's clock, ended once; no part of the ledger."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.errors import BadData
from holdfast.lifecycle.states import State
from holdfast.lifecycle.times import SECOND
from holdfast.ports.models import NewToken, Token
from holdfast.ports.store import Store
from holdfast.testing.factories import new_token
from holdfast.testing.store_actions import all_jobs, job_in, passed

BAD_TOKENS: dict[str, Any] = {
    "no id": {"id": ""},
    "an id that sorts by locale": {"id": "ä1"},
    "an id with a space": {"id": "a b"},
    "a long id": {"id": "a" * 41},
    "no name": {"name": ""},
    "a name with a NUL": {"name": "a\0b"},
    "a name that is not a text": {"name": 7},
    "a long name": {"name": "x" * 101},
    "a short digest": {"digest": b"x" * 31},
    "a digest that is text": {"digest": "x" * 32},
    "no role": {"role": ""},
    "an empty tenant": {"tenant": ""},
    "a lone surrogate": {"tenant": "\ud800"},
    "no queues at all": {"queues": ()},
    "an empty queue": {"queues": ("",)},
    "a list of queues": {"queues": ["a"]},
    "more queues than allowed": {"queues": tuple(f"q{n}" for n in range(51))},
    "no maker": {"created_by": ""},
    "a life that is over": {"lifetime": 0},
    "a life beyond any": {"lifetime": 101 * 365 * 24 * 3600 * SECOND},
    "a life that is not a number": {"lifetime": 1.5},
}


def given(token: Token) -> NewToken:
    """Leave out what the store's clock added."""
    names = [name for name in NewToken.__struct_fields__ if name != "lifetime"]
    lifetime = None if token.expires_at is None else token.expires_at - token.created_at
    return NewToken(lifetime=lifetime, **{name: getattr(token, name) for name in names})


class TokenContract:
    """What is kept of a token, and how it ends."""

    async def test_a_token_is_kept_as_it_was_given(self, store: Store) -> None:
        wanted = new_token(
            name="Grüße, 'w' \"1\" \\ {x}",
            digest=sha256(b"another").digest(),
            role="worker",
            tenant="線",
            queues=("a", "b"),
            created_by="control:bob",
            lifetime=90_000_000,
        )
        before = (await store.clock()).now
        kept = await store.add_token(wanted)

        assert given(kept) == wanted
        assert before <= kept.created_at <= (await store.clock()).now
        assert (kept.revoked_at, kept.revoked_by) == (None, None)
        assert await store.look_up_tokens([wanted.id]) == [kept]
        assert await store.tokens() == [kept]

    async def test_a_token_for_everything_and_for_ever_is_kept_as_such(self, store: Store) -> None:
        kept = await store.add_token(new_token())

        assert (kept.tenant, kept.queues, kept.expires_at) == (None, None, None)

    async def test_adding_a_token_again_changes_nothing(self, store: Store) -> None:
        wanted = new_token()
        kept = await store.add_token(wanted)
        await passed(store, kept.created_at)

        assert await store.add_token(replace(wanted, role="viewer", name="other")) == kept
        assert await store.tokens() == [kept]

    async def test_tokens_are_found_by_id_in_the_order_they_are_asked_for(
        self, store: Store
    ) -> None:
        one, two = await store.add_token(new_token()), await store.add_token(new_token())

        assert await store.look_up_tokens([two.id, "ff00", one.id, two.id]) == [two, None, one, two]
        assert await store.look_up_tokens([]) == []

    async def test_tokens_are_listed_newest_first_page_by_page(self, store: Store) -> None:
        for number in (2, 4, 1, 3):
            await store.add_token(new_token(id=f"0{number}f", tenant="ab"[number % 2]))
        listed = await store.tokens()

        assert [one.id for one in listed] == ["04f", "03f", "02f", "01f"]
        assert await store.tokens(limit=2) == listed[:2]
        assert await store.tokens(before="03f", limit=2) == listed[2:]
        assert await store.tokens(tenant="b") == [listed[1], listed[3]]
        assert await store.tokens(tenant="b", before="03f") == listed[3:]
        assert await store.tokens(tenant="c") == []

    async def test_a_token_for_all_tenants_belongs_to_none(self, store: Store) -> None:
        await store.add_token(new_token(tenant=None))

        assert await store.tokens(tenant="default") == []

    async def test_a_revoked_token_records_when_and_by_whom(self, store: Store) -> None:
        kept = await store.add_token(new_token(id="01"))
        other = await store.add_token(new_token(id="02"))
        await passed(store, kept.created_at)
        revoked = await store.revoke_token(kept.id, actor="control:eve")

        assert revoked is not None
        assert revoked.revoked_at is not None
        assert revoked.revoked_at > kept.created_at
        assert revoked == replace(kept, revoked_at=revoked.revoked_at, revoked_by="control:eve")
        assert await store.look_up_tokens([kept.id, other.id]) == [revoked, other]
        assert await store.tokens() == [other, revoked]

    async def test_the_first_to_revoke_a_token_is_remembered(self, store: Store) -> None:
        kept = await store.add_token(new_token())
        first = await store.revoke_token(kept.id, actor="control:eve")
        assert first is not None
        await passed(store, first.revoked_at or 0)

        assert await store.revoke_token(kept.id, actor="control:bob") == first

    async def test_what_is_not_there_cannot_be_revoked(self, store: Store) -> None:
        kept = await store.add_token(new_token())

        assert await store.revoke_token("ff00", actor="control:eve") is None
        assert await store.tokens() == [kept]

    async def test_many_that_revoke_at_once_agree_on_who_did(self, store: Store) -> None:
        kept = await store.add_token(new_token())
        answers = await asyncio.gather(
            *(store.revoke_token(kept.id, actor=f"control:{n}") for n in range(10))
        )

        assert all(one == answers[0] is not None for one in answers)

    async def test_what_cannot_be_kept_of_a_token_is_refused_before_it_is_written(
        self, store: Store
    ) -> None:
        for what, options in BAD_TOKENS.items():
            try:
                await store.add_token(new_token(**options))
            except BadData:
                continue
            pytest.fail(f"{what} was taken")
        for id_ in ("", "a\0b", "x" * 41):
            with pytest.raises(BadData):
                await store.look_up_tokens([id_])
            with pytest.raises(BadData):
                await store.revoke_token(id_, actor="control:eve")

        assert await store.tokens() == []

    async def test_tokens_are_not_part_of_the_ledger(self, store: Store) -> None:
        await job_in(store, State.RUNNING)
        before = await all_jobs(store)
        kept = await store.add_token(new_token())
        await store.recount()

        assert await all_jobs(store) == before
        assert await store.tokens() == [kept]
