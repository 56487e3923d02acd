"""What comes in on one channel: take, check, handle, and only then acknowledge."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from time import monotonic
from typing import TypeAlias

from msgspec import Struct

from holdfast.buses.cap import SUBJECTS, OwnPacket, PacketRefused, read_packet
from holdfast.errors import StoreError
from holdfast.ports.bus import BusChannel, BusMessage, BusWord
from holdfast.services.bus_bridge.refusals import Refusals
from holdfast.services.bus_bridge.settings import BridgeParts
from holdfast.services.loop import Loop

log = logging.getLogger(__name__)

BATCH = 500
"""Messages that are taken at once, and that may be open: a server stops at 1,000 that are."""
WAIT_SECONDS = 1.0
AGAIN_SECONDS = 0.5
"""How long new messages are waited for while others are to be handled again."""
BACKLOG_BATCHES = 20
BACKLOG_SECONDS = 0.2
"""How long a server has to answer that it keeps nothing."""


class Arrival(Struct, eq=False):
    """A packet that came in; its handler marks it as done, and it is acknowledged then."""

    word: BusWord
    message: BusMessage | None
    """None once it was acknowledged."""
    done: bool = False
    kept: bool = True
    """Whether the message waits for the end; if not it is acknowledged now."""


Handle: TypeAlias = Callable[[Sequence[Arrival]], Awaitable[None]]
"""Handles packets. Those that are not done afterwards, or after an error, are handled again."""


def all_or_none(handle: Callable[[Sequence[BusWord]], Awaitable[None]]) -> Handle:
    """Make a Handle of a function after which all words are done, unless it raises."""

    async def handle_all(arrivals: Sequence[Arrival]) -> None:
        await handle([one.word for one in arrivals])
        for one in arrivals:
            one.done = True

    return handle_all


class Intake(Loop):
    """The loop of one channel.

    What the store could not take is kept and handled again, with what came meanwhile behind it: a
    server without streams will not send it a second time.
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
        on_read: Callable[[float], None] = lambda _: None,
    ) -> None:
        """Call `on_read` with the monotonic time by which all that had come is handled."""
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
        """Taken, and not read yet."""
        self._arrivals: list[Arrival] = []
        """Read, and not done yet."""
        self._spent: list[BusMessage] = []
        """To be acknowledged."""
        self._more = False
        """Whether more may have come than was taken."""
        self._taken_at = 0.0

    async def open(self) -> None:
        """Start to receive."""
        await self._inbox.open()

    async def receive_backlog(self) -> None:
        """Handle what waits already, within a bound, before the loop runs."""
        for _ in range(BACKLOG_BATCHES):
            if not await self._receive_batch(BACKLOG_SECONDS):
                return

    async def _receive(self) -> float:
        await self._receive_batch(AGAIN_SECONDS if self._arrivals else WAIT_SECONDS)
        # Without room it does not wait for messages either.
        return 0.0 if self._room > 0 else AGAIN_SECONDS

    async def _receive_batch(self, wait_seconds: float) -> bool:
        """Handle what is there; return whether anything came."""
        if not self._messages:
            self._messages = await self._take(wait_seconds)
        came = bool(self._messages)
        if came:
            await self._read_all()
        if self._arrivals:
            await self._handle_or_spare(self._arrivals)
        await self._acknowledge()
        if not self._arrivals and not self._more and self._parts.bus.connected:
            self._on_read(self._taken_at)
        return came

    @property
    def _room(self) -> int:
        """How many more messages may be open."""
        return BATCH - sum(one.message is not None for one in self._arrivals)

    async def _take(self, wait_seconds: float) -> list[BusMessage]:
        room = self._room
        if room <= 0:
            return []
        messages = await self._inbox.take(room, wait_seconds=wait_seconds)
        self._more, self._taken_at = len(messages) == room, monotonic()
        self._parts.meters.bus.receive(self._channel, len(messages))
        return messages

    async def _read_all(self) -> None:
        now = (await self._parts.store.clock()).now if self._parts.trust.signed else None
        messages, self._messages = self._messages, []
        for message in messages:
            if (known := self._find_open(message)) is not None:
                known.message = message
                continue
            word = self._read(message, now)
            if word is None:
                self._spent.append(message)
            else:
                self._arrivals.append(Arrival(word, message))

    def _find_open(self, message: BusMessage) -> Arrival | None:
        """Return the packet that a message repeats, because it was not acknowledged for long."""
        if not message.redelivered:
            return None
        for one in self._arrivals:
            if one.message is not None and one.message.data == message.data:
                return one
        return None

    async def _acknowledge(self) -> None:
        for one in self._arrivals:
            if one.message is not None and (one.done or not one.kept):
                self._spent.append(one.message)
                one.message = None
        self._arrivals = [one for one in self._arrivals if not one.done]
        await self._inbox.done(self._spent)
        self._spent = []

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

    async def _handle_or_spare(self, arrivals: Sequence[Arrival]) -> None:
        """Handle packets; one that cannot be handled must not stop the others."""
        # Some may have been done before an error.
        left = [one for one in arrivals if not one.done]
        try:
            await self._handle(left)
        except StoreError:
            raise
        except Exception as error:
            if len(left) == 1:
                # No traceback for each: any sender may decide how often there is cause.
                log.debug("a packet on %s could not be handled", self._channel, exc_info=True)
                self._refusals.add(self._channel, "internal", repr(error))
                left[0].done = True
                return
            for one in left:
                await self._handle_or_spare([one])
