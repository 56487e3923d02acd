"""Routes about tokens: make, list, revoke. For admins, who hand on no more than they have."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from holdfast.http.asking import Ask, asking
from holdfast.http.bodies import answer
from holdfast.http.documents import documented
from holdfast.http.scopes import Scope
from holdfast.tokens import MadeToken, TokenDesk, TokenList, TokenView, WantedToken

router = APIRouter(prefix="/v1/tokens", tags=["tokens"])


@router.post("", status_code=201, **documented(takes=WantedToken, reads=(), _201=MadeToken))
async def create_token(ask: Annotated[Ask, asking(Scope.TOKENS)]) -> Response:
    """Make a token. Its secret is in this answer alone; if that is lost, revoke it by its id."""
    wanted = await ask.body(WantedToken)
    return answer(await _desk(ask).create(wanted), 201)


@router.get("", **documented(reads=(), _200=TokenList))
async def list_tokens(
    ask: Annotated[Ask, asking(Scope.TOKENS)],
    before: Annotated[str | None, Query(pattern="^[0-9a-f]{1,40}$")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """List tokens, revoked and expired ones too, newest first."""
    # One more than asked for tells whether there is a next page.
    found = await _desk(ask).tokens(before=before, limit=limit + 1)
    shown = found[:limit]
    return answer(TokenList(tokens=shown, next=shown[-1].id if len(found) > limit else None))


@router.delete("/{token}", **documented(reads=(), _200=TokenView))
async def revoke_token(ask: Annotated[Ask, asking(Scope.TOKENS)], token: str) -> Response:
    """End a token for ever; servers notice within two seconds."""
    return answer(await _desk(ask).revoke(token))


def _desk(ask: Ask) -> TokenDesk:
    caller = ask.caller
    return TokenDesk(
        ask.house.session.store,
        actor=f"control:{caller.name}",
        tenant=caller.tenant,
        queues=caller.queues,
    )
