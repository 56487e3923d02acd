"""Defects of what is kept of tokens."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.errors import BadData
from holdfast.ports.models import NewToken, Token
from tests.stores.defects.wrapped import Wrapped


class RevokesNothing(Wrapped):
    caught_by = ("test_a_revoked_token_records_when_and_by_whom",)

    async def revoke_token(self, id: str, *, actor: str) -> Token | None:
        [token] = await self.inner.look_up_tokens([id])
        return token


class RevokesAgain(Wrapped):
    caught_by = ("test_the_first_to_revoke_a_token_is_remembered",)

    async def revoke_token(self, id: str, *, actor: str) -> Token | None:
        await self.raw("UPDATE tokens SET revoked_at = NULL, revoked_by = NULL WHERE id = ?", id)
        return await self.inner.revoke_token(id, actor=actor)


class RemovesWhatIsRevoked(Wrapped):
    caught_by = ("test_a_revoked_token_records_when_and_by_whom",)

    async def revoke_token(self, id: str, *, actor: str) -> Token | None:
        revoked = await self.inner.revoke_token(id, actor=actor)
        await self.raw("DELETE FROM tokens WHERE id = ?", id)
        return revoked


class ForgetsThatTokensEnd(Wrapped):
    caught_by = ("test_a_token_is_kept_as_it_was_given",)

    async def add_token(self, token: NewToken) -> Token:
        return await self.inner.add_token(replace(token, lifetime=None))


class WidensTokens(Wrapped):
    caught_by = ("test_a_token_is_kept_as_it_was_given",)

    async def add_token(self, token: NewToken) -> Token:
        return await self.inner.add_token(replace(token, queues=None))


class TakesTheLastWordOnATokenId(Wrapped):
    caught_by = ("test_adding_a_token_again_changes_nothing",)

    async def add_token(self, token: NewToken) -> Token:
        await self.raw("DELETE FROM tokens WHERE id = ?", token.id)
        return await self.inner.add_token(token)


class AnswersWithoutTheMissing(Wrapped):
    caught_by = ("test_tokens_are_found_by_id_in_the_order_they_are_asked_for",)

    async def look_up_tokens(self, ids: Sequence[str]) -> list[Token | None]:
        return [token for token in await self.inner.look_up_tokens(ids) if token is not None]


class ListsEveryonesTokens(Wrapped):
    caught_by = (
        "test_tokens_are_listed_newest_first_page_by_page",
        "test_a_token_for_all_tenants_belongs_to_none",
    )

    async def tokens(
        self, *, tenant: str | None = None, before: str | None = None, limit: int = 100
    ) -> list[Token]:
        return await self.inner.tokens(before=before, limit=limit)


class SwallowsBadTokens(Wrapped):
    caught_by = ("test_what_cannot_be_kept_of_a_token_is_refused_before_it_is_written",)

    async def add_token(self, token: NewToken) -> Token | None:
        with contextlib.suppress(BadData):
            return await self.inner.add_token(token)
        return None


DEFECTS: tuple[type[Wrapped], ...] = (
    RevokesNothing,
    RevokesAgain,
    RemovesWhatIsRevoked,
    ForgetsThatTokensEnd,
    WidensTokens,
    TakesTheLastWordOnATokenId,
    AnswersWithoutTheMissing,
    ListsEveryonesTokens,
    SwallowsBadTokens,
)
