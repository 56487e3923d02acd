"""Whether a message found a listener: only the server's own answer counts, not a subscriber's."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.protocol import command

from holdfast.buses.nats import NatsBus
from holdfast.ports.bus import Delivery, Outgoing
from tests.buses.site import Site, until

Answer = Callable[[Client, str], Awaitable[None]]
MESSAGES = [Outgoing(subject="job.heard", data=b"x")] * 50
UNHEARD = [Outgoing(subject="job.unheard", data=b"x")] * 50


async def _by_a_header(client: Client, reply: str) -> None:
    await client.publish(reply, b"", headers={"Status": "503"})


async def _by_a_status_line(client: Client, reply: str) -> None:
    """Answer with the very bytes that a server sends; no client has a function for that."""
    raw = command.hpub_cmd(reply, "", b"NATS/1.0 503\r\n\r\n", b"")
    await client._send_command(raw)
    await client._flush_pending()


forgeries = pytest.mark.parametrize("answer", [_by_a_header, _by_a_status_line])


@pytest.fixture
async def bus(site: Site) -> AsyncIterator[NatsBus]:
    bus = site.bus()
    await bus.open()
    yield bus
    await bus.close()


@pytest.fixture
async def forger(site: Site) -> AsyncIterator[Client]:
    client = await nats.connect(site.server.url)
    yield client
    await client.close()


async def _subscribe(client: Client, subject: str, note: Callable[[Any], Awaitable[None]]) -> None:
    await client.subscribe(subject, cb=note)
    # Twice: the client writes the ping of a flush ahead of what is still buffered.
    await client.flush()
    await client.flush()


async def _forge(client: Client, answer: Answer) -> list[str]:
    """Answer each message as the server would if there were no listener."""
    replies: list[str] = []

    async def note(message: Any) -> None:
        replies.append(message.reply)
        await answer(client, message.reply)

    await _subscribe(client, "job.heard", note)
    return replies


@forgeries
async def test_a_subscriber_that_answers_for_the_server_changes_nothing(
    bus: NatsBus, forger: Client, answer: Answer
) -> None:
    await _forge(forger, answer)
    for _ in range(20):
        assert set(await bus.send(MESSAGES)) == {Delivery.SENT}


async def test_the_server_s_answer_counts_whoever_forges_others(
    bus: NatsBus, forger: Client
) -> None:
    replies = await _forge(forger, _by_a_header)
    for _ in range(20):
        found = await bus.send([*MESSAGES, *UNHEARD])
        assert found == [Delivery.SENT] * 50 + [Delivery.NO_LISTENER] * 50
    await until(lambda: len(replies) == 20 * 50, "the forger to have answered")
    # Nobody can guess the reply of a message that nobody got.
    assert len(set(replies)) == len(replies)


@pytest.mark.parametrize("first", ["header", "status line"])
async def test_a_forger_that_answers_more_than_once_changes_nothing(
    bus: NatsBus, forger: Client, first: str
) -> None:
    both = [_by_a_header, _by_a_status_line]

    async def answer(client: Client, reply: str) -> None:
        for one in both if first == "header" else reversed(both):
            await one(client, reply)

    await _forge(forger, answer)
    for _ in range(20):
        assert set(await bus.send(MESSAGES)) == {Delivery.SENT}


async def test_a_message_to_nobody_and_one_to_a_listener_in_one_batch_are_told_apart(
    bus: NatsBus, site: Site
) -> None:
    await _subscribe(site.client, "job.heard", _ignore)
    for _ in range(20):
        found = await bus.send([*UNHEARD, *MESSAGES, *UNHEARD])
        assert found[:50] == found[100:] == [Delivery.NO_LISTENER] * 50
        assert found[50:100] == [Delivery.SENT] * 50


async def _ignore(message: Any) -> None:
    pass


@forgeries
@pytest.mark.req("A16")
async def test_no_job_is_sent_twice_because_of_a_forged_answer(
    site: Site, forger: Client, answer: Answer
) -> None:
    sent: Counter[str] = Counter()

    async def forge(message: Any) -> None:
        await answer(forger, message.reply)

    heard = await site.listen("job.once")
    await _subscribe(forger, "job.once", forge)
    async with site.bridge() as bridge:
        for number in range(20):
            await site.submit(f"j{number}")
        for number in range(20):
            await site.out(f"j{number}")
        await until(lambda: len(heard) >= 20, "all to be sent")
        assert bridge.meters.bus.sent.get("no_listener", 0) == 0
    sent.update(packet.job_request.job_id for packet in heard)
    assert set(sent.values()) == {1}
