"""What comes in on one channel: take, check, handle, and only then acknowledge."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from holdfast.buses.cap import SUBJECTS, OwnPacket, PacketRefused, read_packet
from holdfast.errors import StoreError
from holdfast.ports.bus import BusChannel, BusMessage, BusWord
from holdfast.services.bus_bridge.refusals import Refusals
from holdfast.services.bus_bridge.settings import BridgeParts
from holdfast.services.loop import Loop

log = logging.getLogger(__name__)

Handle: TypeAlias = Callable[[Sequence[BusWord]], Awaitable[None]]

BATCH = 500
WAIT_SECONDS = 1.0


class Intake(Loop):
    """The loop of one channel.

    A batch that the store could not take is kept and handled again: a server without streams will
    not send it a second time.
    """

    def __init__(
        self,
        parts: BridgeParts,
        channel: BusChannel,
        handle: Handle,
        refusals: Refusals,
        *,
        shared: bool = True,
        kept: bool = False,
        on_read: Callable[[], None] = lambda: None,
    ) -> None:
        """Call `on_read` whenever all that had come was handled."""
        super().__init__(
            f"bus-{channel}",
            self._receive,
            meters=parts.meters,
            first_pause_seconds=0.1,
            longest_pause_seconds=5.0,
        )
        self._parts = parts
        self._channel = channel
        self._handle = handle
        self._refusals = refusals
        self._on_read = on_read
        self._inbox = parts.bus.inbox(channel, SUBJECTS[channel], shared=shared, kept=kept)
        self._messages: list[BusMessage] = []
        self._words: list[BusWord] | None = None
        """What the messages report; None: they were not read yet."""

    async def open(self) -> None:
        """Start to receive."""
        await self._inbox.open()

    async def _receive(self) -> float:
        if not self._messages:
            self._messages = await self._inbox.take(BATCH, wait_seconds=WAIT_SECONDS)
        if self._words is None:
            self._words = await self._read_all(self._messages)
        if self._words:
            await self._handle_or_spare(self._words)
        await self._inbox.done(self._messages)
        if len(self._messages) < BATCH and self._parts.bus.connected:
            self._on_read()
        self._messages, self._words = [], None
        return 0.0

    async def _read_all(self, messages: Sequence[BusMessage]) -> list[BusWord]:
        if not messages:
            return []
        self._parts.meters.bus.receive(self._channel, len(messages))
        now = (await self._parts.store.clock()).now if self._parts.trust.signed else None
        words = (self._read(message, now) for message in messages)
        return [word for word in words if word is not None]

    def _read(self, message: BusMessage, now: int | None) -> BusWord | None:
        # A message that waited in a stream is as old as it was when the stream took it.
        at = now if message.received_at is None or now is None else message.received_at
        try:
            return read_packet(
                message.data,
                self._channel,
                self._parts.trust,
                now=at,
                redelivered=message.redelivered,
            )
        except OwnPacket:
            return None
        except PacketRefused as error:
            self._refusals.add(self._channel, error.reason, f"{error.sender}: {error}")
            return None

    async def _handle_or_spare(self, words: Sequence[BusWord]) -> None:
        """Handle words; one that cannot be handled must not stop the others."""
        try:
            await self._handle(words)
        except StoreError:
            raise
        except Exception as error:
            if len(words) == 1:
                # No traceback for each: any sender may decide how often there is cause.
                log.debug("a packet on %s could not be handled", self._channel, exc_info=True)
                self._refusals.add(self._channel, "internal", repr(error))
                return
            for word in words:
                await self._handle_or_spare([word])
