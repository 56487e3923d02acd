"""The tables of a settings file that describe a bus: `[buses.NAME]`."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from holdfast.ports.bus import BusChannel


class JetStreamMode(StrEnum):
    """Whether messages wait in a stream."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


class SenderRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table `[buses.NAME.senders.ID]`: what a sender may do, and the key that it signs with."""

    public_key: str | None = None
    """A file with the key in PEM; without one its packets are believed unsigned."""
    channels: tuple[BusChannel, ...] = ()
    """The channels that it may send on; none: all."""
    topics: tuple[str, ...] = ()
    """The topics that it may submit jobs of, as patterns; none: all."""


class BusRules(Struct, frozen=True, kw_only=True):
    """The table `[buses.NAME]`: how a bridge appears on the bus, and whom it believes."""

    sender_id: str | None = None
    """The sender of what the bridges publish; `holdfast-NAME` if it is not given."""
    private_key: str | None = None
    """A file with the key in PEM that they sign with; without one they do not sign."""
    capabilities: tuple[str, ...] = ()
    """What the workers have that do not announce it themselves."""
    cancel_grace_seconds: float = 10.0
    """How long a worker that was asked to end a job is waited for."""
    senders: dict[str, SenderRule] = {}
    """As soon as there is one, no other sender is believed."""
