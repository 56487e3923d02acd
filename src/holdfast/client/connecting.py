"""A server's operations, or its tokens, for as long as a block runs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from holdfast.client.operations import RemoteOperations
from holdfast.client.requests import Requests, make_headers, make_http
from holdfast.client.tokens import RemoteTokens


@asynccontextmanager
async def connected_tokens(
    url: str, *, token: str | None, patience_seconds: float
) -> AsyncIterator[RemoteTokens]:
    """Connect to a server's tokens."""
    async with make_http(url, make_headers(token, None)) as http:
        yield RemoteTokens(Requests(http, patience_seconds=patience_seconds))


@asynccontextmanager
async def connected(
    url: str, *, token: str | None, tenant: str | None, patience_seconds: float
) -> AsyncIterator[RemoteOperations]:
    """Connect to a server; `tenant` is for a token that may act for all of them."""
    async with make_http(url, make_headers(token, tenant)) as http:
        yield RemoteOperations(Requests(http, patience_seconds=patience_seconds))
