"""Tokens through a server: what the caller's own token has a say over."""

from __future__ import annotations

from urllib.parse import quote

from holdfast.client.requests import Requests
from holdfast.tokens import MadeToken, TokenList, TokenView, WantedToken

PATH = "/v1/tokens"


class RemoteTokens:
    """Makes, lists and revokes tokens by asking a server."""

    def __init__(self, requests: Requests) -> None:
        """Ask through `requests`."""
        self._requests = requests

    async def create(self, wanted: WantedToken) -> MadeToken:
        """Make a token. If the answer is lost it is made again: the first is nobody's."""
        return (await self._requests.ask("POST", PATH, body=wanted)).read(MadeToken)

    async def tokens(self, *, before: str | None = None, limit: int = 100) -> list[TokenView]:
        """List tokens, newest first."""
        query = [("limit", str(limit))] + ([] if before is None else [("before", before)])
        reply = await self._requests.ask("GET", PATH, query=query)
        return reply.read(TokenList).tokens

    async def revoke(self, id: str) -> TokenView:
        """End a token for ever."""
        path = f"{PATH}/{quote(id, safe='')}"
        return (await self._requests.ask("DELETE", path)).read(TokenView)
