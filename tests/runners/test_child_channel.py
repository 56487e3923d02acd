"""A handler never waits for a slow worker to tell its progress, and the newest is not lost."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from holdfast.runners.process.child_channel import Channel
from holdfast.runners.process.protocol import (
    Frames,
    HandlerHeartbeat,
    HandlerProgress,
    HandlerStarted,
    InvalidMessage,
    ToWorker,
    frame,
)

BIG = b"x" * 10_000


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    worker, child = socket.socketpair()
    with worker, child:
        worker.settimeout(30)
        yield worker, child


def test_progress_does_not_wait_for_a_worker_that_does_not_read(
    ends: tuple[socket.socket, socket.socket],
) -> None:
    worker, child = ends
    channel, frames = Channel(child), Frames[ToWorker](ToWorker)
    for number in range(200):
        channel.offer(HandlerProgress(BIG + str(number).encode()))
    channel.offer(HandlerHeartbeat())
    heard: list[ToWorker] = []
    worker.setblocking(False)
    try:
        while True:
            heard += frames.feed(worker.recv(65536))
    except BlockingIOError:
        worker.settimeout(30)
    assert 0 < len(heard) < 200

    channel.send(HandlerStarted())
    while HandlerStarted() not in heard:
        heard += frames.feed(worker.recv(65536))
    assert HandlerHeartbeat() in heard
    assert [told for told in heard if isinstance(told, HandlerProgress)][-1].body == BIG + b"199"


def test_messages_are_put_together_from_whatever_pieces_arrive() -> None:
    sent: list[ToWorker] = [HandlerStarted(), HandlerProgress(b"1"), HandlerHeartbeat()]
    stream = b"".join(frame(message) for message in sent)
    frames = Frames[ToWorker](ToWorker)

    assert [told for byte in stream for told in frames.feed(bytes([byte]))] == sent


def test_a_message_beyond_the_limit_is_neither_sent_nor_awaited() -> None:
    with pytest.raises(InvalidMessage, match="the limit is"):
        frame(HandlerProgress(b"x" * 2_000_000))
    with pytest.raises(InvalidMessage, match="2,000,004 bytes"):
        list(Frames[ToWorker](ToWorker).feed((2_000_000).to_bytes(4, "big")))
