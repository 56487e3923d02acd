"""NATS: the connection, its inboxes, and messages whose sender learns whether there is a listener.

The client connects again whenever the connection is lost. Where the server has JetStream, what
must not be lost waits in a stream until a bridge has stored it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from time import monotonic
from typing import Any

import nats
from nats import errors
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, DeliverPolicy, RetentionPolicy, StorageType, StreamConfig
from nats.js.errors import APIError, NotFoundError, ServiceUnavailableError

from holdfast.buses.rules import JetStreamMode
from holdfast.errors import BadConfig, BusUnavailable
from holdfast.ids import mint_request
from holdfast.ports.bus import BusChannel, BusMessage, Delivery, Inbox, Outgoing

log = logging.getLogger(__name__)

RECONNECT_SECONDS = 0.25
FLUSH_SECONDS = 5
BATCH_SECONDS = 0.02
"""How long a batch of a stream is waited for once its first message is there."""
PENDING_MESSAGES = 65_536
PENDING_BYTES = 64 * 1024 * 1024
"""What one subscription may hold that was not taken yet; beyond it messages are dropped."""
ACK_SECONDS = 30.0
"""After this long a message that was taken and not done is delivered again."""
KEPT_SECONDS = 7 * 24 * 3600.0
LOG_EVERY_SECONDS = 10.0
_NO_LISTENER = "503"
_COPIES = 2
"""Subscriptions that take answers: of the server's own only one gets a copy."""


class NatsBus:
    """A bus on a NATS server."""

    def __init__(
        self,
        url: str,
        name: str,
        *,
        jetstream: JetStreamMode = JetStreamMode.AUTO,
        kept: Sequence[str] = (),
    ) -> None:
        """Connect to `url` as a bridge of the bus `name`; `kept` are the subjects of its stream."""
        self.name = name
        self.dropped = 0
        self.connections = 0
        """How often the connection was made again."""
        self._url = url
        self._mode = jetstream
        self._kept = tuple(kept)
        self._client: Client | None = None
        self._jetstream: JetStreamContext | None = None
        self._streams: dict[str, str] = {}
        self._probes: list[Subscription] = []
        self._probe_prefix = ""
        self._sending = asyncio.Lock()
        self._logged_at = -LOG_EVERY_SECONDS

    @property
    def connected(self) -> bool:
        """Whether the connection is there now."""
        return self._client is not None and self._client.is_connected

    async def open(self) -> None:
        """Connect, for as long as it takes; then find or make the stream.

        After an error it can be called again, and continues from there.
        """
        if self._client is None:
            self._client = await self._connect()
        client = self._client
        try:
            self._probe_prefix = self._probe_prefix or client.new_inbox()
            while len(self._probes) < _COPIES:
                self._probes.append(await client.subscribe(f"{self._probe_prefix}.*"))
            if self._mode is not JetStreamMode.OFF:
                await self._open_streams(client)
        except (errors.Error, OSError) as error:
            raise BusUnavailable(f"the bus cannot be opened: {error}") from error

    async def _connect(self) -> Client:
        try:
            return await nats.connect(
                servers=self._url.split(","),
                name=f"holdfast-{self.name}",
                max_reconnect_attempts=-1,
                reconnect_time_wait=RECONNECT_SECONDS,
                ping_interval=5,
                max_outstanding_pings=2,
                error_cb=self._note_error,
                disconnected_cb=self._note_loss,
                reconnected_cb=self._note_return,
            )
        except (errors.Error, ValueError) as error:
            # A server that is away is waited for: this is one that can never be reached.
            raise BadConfig(f"the address of the bus is not valid: {error}") from error

    async def close(self) -> None:
        """Disconnect, once what was sent has left."""
        if self._client is None:
            return
        try:
            if self._client.is_connected:
                await asyncio.wait_for(self._client.flush(), FLUSH_SECONDS)
        except (TimeoutError, errors.Error, OSError) as error:
            log.warning("the bus was closed before all messages had left: %s", error)
        await self._client.close()

    def inbox(self, channel: BusChannel, subject: str, *, shared: bool, kept: bool) -> Inbox:
        """Make an inbox of a subject; see `ports.bus.Bus`."""
        if kept and subject in self._streams:
            return _StreamInbox(self, channel, subject)
        return _CoreInbox(self, subject, f"holdfast.{self.name}" if shared else "")

    async def send(self, messages: Sequence[Outgoing]) -> list[Delivery]:
        """Send messages; a subject without subscribers answers for itself."""
        client = self.client
        # One batch at a time: the answers to it are read right behind the flush.
        async with self._sending:
            await self._take_answers()
            replies = [f"{self._probe_prefix}.{mint_request()}" for _ in messages]
            found = [
                await self._publish(client, one, reply)
                for one, reply in zip(messages, replies, strict=True)
            ]
            if Delivery.SENT not in found:
                return found
            try:
                unheard = await self._find_unheard(client)
            except (errors.Error, OSError):
                return [Delivery.UNKNOWN if one is Delivery.SENT else one for one in found]
            return [
                Delivery.NO_LISTENER if reply in unheard else one
                for one, reply in zip(found, replies, strict=True)
            ]

    async def _find_unheard(self, client: Client) -> set[str]:
        """Return the replies of messages that nobody got: the server itself has answered.

        Who got a message can publish the same answer, byte for byte. But the server gives its own
        to one subscription of this client, and what a client publishes to each that matches.
        """
        # Twice: the client writes the ping of a flush ahead of what is still buffered, so that only
        # the second answer comes behind the messages.
        await client.flush(FLUSH_SECONDS)
        await client.flush(FLUSH_SECONDS)
        # The server answers in order: its answers came before the end of the flush.
        answers = await self._take_answers()
        if 1 in answers.values():
            # The second copy of a forged answer may be just behind the first.
            await client.flush(FLUSH_SECONDS)
            answers += await self._take_answers()
        return {reply for reply, copies in answers.items() if copies == 1}

    async def _take_answers(self) -> Counter[str]:
        """Return how often each reply was answered by `no listener` since the last time."""
        found = [one for probes in self._probes for one in await _drain(probes)]
        silent = [one for one in found if (one.headers or {}).get("Status") == _NO_LISTENER]
        return Counter(one.subject for one in silent)

    async def _publish(self, client: Client, message: Outgoing, reply: str) -> Delivery:
        # The client would keep it, and send it whenever the server returns: too late for a job.
        if not client.is_connected:
            return Delivery.NOT_SENT
        try:
            await client.publish(message.subject, message.data, reply=reply)
        except errors.Error as error:
            log.warning("a message to %s was not sent: %s", message.subject, error)
            return Delivery.NOT_SENT
        return Delivery.SENT

    @property
    def client(self) -> Client:
        """The connection."""
        if self._client is None:
            raise BusUnavailable("the bus is not open")
        return self._client

    @property
    def jetstream(self) -> JetStreamContext:
        """What asks for streams."""
        assert self._jetstream is not None
        return self._jetstream

    def stream_of(self, subject: str) -> str:
        """Return the stream of a kept subject."""
        return self._streams[subject]

    @property
    def own_stream(self) -> str:
        """The stream that is made if the server has none of a subject."""
        return f"holdfast-{self.name}"

    async def _open_streams(self, client: Client) -> None:
        js = client.jetstream()
        try:
            await js.account_info()
        except (errors.NoRespondersError, ServiceUnavailableError) as error:
            if self._mode is JetStreamMode.ON:
                raise BadConfig("the server has no JetStream; start it with -js") from error
            log.warning("the server has no JetStream: a submit is lost while no bridge runs")
            return
        self._jetstream = js
        await self.find_streams()

    async def find_streams(self) -> None:
        """Find the stream of each kept subject, and make what is missing."""
        found = {subject: await _stream_of(self.jetstream, subject) for subject in self._kept}
        missing = [subject for subject, stream in found.items() if stream is None]
        if missing:
            await self._make_stream(self.jetstream, missing)
        self._streams = {subject: stream or self.own_stream for subject, stream in found.items()}

    async def _make_stream(self, js: JetStreamContext, subjects: list[str]) -> None:
        config = StreamConfig(
            name=self.own_stream,
            subjects=subjects,
            storage=StorageType.FILE,
            # What was acknowledged is of no use to anyone, and would fill the server's disk.
            retention=RetentionPolicy.INTEREST,
            max_age=KEPT_SECONDS,
        )
        try:
            await js.add_stream(config)
        except APIError as error:
            # Another bridge may have made it at the same time.
            for subject in subjects:
                if await _stream_of(js, subject) is None:
                    raise BusUnavailable(f"the stream cannot be made: {error}") from error

    async def _note_error(self, error: Exception) -> None:
        if isinstance(error, errors.SlowConsumerError):
            self.dropped += 1
        if monotonic() - self._logged_at >= LOG_EVERY_SECONDS:
            self._logged_at = monotonic()
            log.warning("bus %s: %s", self.name, error or type(error).__name__)

    async def _note_loss(self) -> None:
        log.warning("bus %s: the connection was lost; connecting again", self.name)

    async def _note_return(self) -> None:
        self.connections += 1


async def _stream_of(js: JetStreamContext, subject: str) -> str | None:
    try:
        return str(await js.find_stream_name_by_subject(subject))
    except NotFoundError:
        return None


async def _drain(subscription: Subscription) -> list[Any]:
    return [await subscription.next_msg(timeout=1) for _ in range(subscription.pending_msgs)]


class _CoreInbox:
    """What comes in while this process listens."""

    def __init__(self, bus: NatsBus, subject: str, group: str) -> None:
        self._bus = bus
        self._subject = subject
        self._group = group
        self._subscription: Subscription | None = None

    async def open(self) -> None:
        self._subscription = await self._bus.client.subscribe(
            self._subject,
            queue=self._group,
            pending_msgs_limit=PENDING_MESSAGES,
            pending_bytes_limit=PENDING_BYTES,
        )

    async def take(self, limit: int, *, wait_seconds: float) -> list[BusMessage]:
        assert self._subscription is not None
        try:
            found = [await self._subscription.next_msg(timeout=wait_seconds)]
        except errors.TimeoutError:
            return []
        except errors.Error as error:
            raise BusUnavailable(f"the bus cannot be read: {error}") from error
        while len(found) < limit and self._subscription.pending_msgs:
            found.append(await self._subscription.next_msg(timeout=1))
        return [BusMessage(data=one.data) for one in found]

    async def done(self, messages: Sequence[BusMessage]) -> None:
        """Nothing is to be done: the server keeps no message."""


class _StreamInbox:
    """What waits in a stream, shared by all bridges of the bus."""

    def __init__(self, bus: NatsBus, channel: BusChannel, subject: str) -> None:
        self._bus = bus
        self._channel = channel
        self._subject = subject
        self._subscription: JetStreamContext.PullSubscription | None = None
        self._connection = 0

    async def open(self) -> None:
        self._connection = self._bus.connections
        stream = self._bus.stream_of(self._subject)
        # What others keep for themselves may be old, and long done.
        policy = DeliverPolicy.ALL if stream == self._bus.own_stream else DeliverPolicy.NEW
        try:
            self._subscription = await self._bus.jetstream.pull_subscribe(
                self._subject,
                durable=f"holdfast-{self._bus.name}-{self._channel}",
                stream=stream,
                config=ConsumerConfig(ack_wait=ACK_SECONDS, deliver_policy=policy),
            )
        except (errors.Error, OSError) as error:
            raise BusUnavailable(f"the stream {stream} cannot be read: {error}") from error

    async def take(self, limit: int, *, wait_seconds: float) -> list[BusMessage]:
        if not self._bus.connected:
            await asyncio.sleep(min(wait_seconds, RECONNECT_SECONDS))
            return []
        if self._connection != self._bus.connections:
            # The server may be another: it would not report that it does not know the consumer.
            await self._forget()
        if self._subscription is None:
            await self._open_again()
        # The client waits for a batch to be full, up to the timeout: where nothing is there yet, it
        # is asked for one message, which it returns at once.
        found = await self._fetch(limit, BATCH_SECONDS) or await self._fetch(1, wait_seconds)
        return [_message(one) for one in found]

    async def _fetch(self, limit: int, wait_seconds: float) -> list[Any]:
        assert self._subscription is not None
        try:
            return await self._subscription.fetch(limit, timeout=wait_seconds)
        except (TimeoutError, errors.TimeoutError):
            return []
        except (errors.Error, OSError) as error:
            # The server may have lost its consumer: it is made again.
            await self._forget()
            raise BusUnavailable(f"the stream cannot be read: {error}") from error

    async def done(self, messages: Sequence[BusMessage]) -> None:
        for message in messages:
            try:
                await message.handle.ack()
            except errors.Error as error:
                # It is delivered again, and recognised.
                log.debug("a message was not acknowledged: %s", error)

    async def _open_again(self) -> None:
        """Open it after an error; a server that was replaced has no stream either."""
        try:
            await self._bus.find_streams()
        except (errors.Error, OSError) as error:
            raise BusUnavailable(f"the stream cannot be found: {error}") from error
        await self.open()

    async def _forget(self) -> None:
        subscription, self._subscription = self._subscription, None
        try:
            if subscription is not None:
                await subscription.unsubscribe()
        except errors.Error as error:
            log.debug("a subscription was not ended: %s", error)


def _message(one: Any) -> BusMessage:
    return BusMessage(
        data=one.data,
        received_at=int(one.metadata.timestamp.timestamp() * 1_000_000),
        redelivered=one.metadata.num_delivered > 1,
        handle=one,
    )
