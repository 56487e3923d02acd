"""A server that ends lets nobody wait."""

from __future__ import annotations

import asyncio

import httpx

from holdfast.http.router import Application
from tests.worker_protocol.hand import Hand, submitted


async def test_a_claim_that_waits_is_answered_when_the_server_ends(
    server: Application, http: httpx.AsyncClient, hand: Hand
) -> None:
    waiting = asyncio.create_task(hand.claim(wait_seconds=25))
    assert await hand.claim() == []
    server.state.shutdown.start()
    assert await asyncio.wait_for(waiting, 20) == []
    # What is due is still given to whoever asks.
    await submitted(http)
    assert len(await hand.claim(wait_seconds=25)) == 1
