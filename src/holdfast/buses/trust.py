"""Whom a bridge believes on a bus: senders, what each may send, and their keys.

As soon as one sender is configured, no other is believed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from holdfast.admission.topics import Route, Topics
from holdfast.buses.rules import SenderRule
from holdfast.errors import BadConfig
from holdfast.lifecycle.times import SECOND
from holdfast.ports.bus import BusChannel

WINDOW = 300 * SECOND
"""How old, or how far ahead, a signed packet may be when it arrives."""
MOST_SEEN = 200_000
"""Signed packets that are remembered; within the window, a flood of others forgets older."""


class Trust:
    """What a bridge checks of a sender, and signs its own packets with."""

    def __init__(
        self,
        sender_id: str,
        *,
        rules: Mapping[str, SenderRule] | None = None,
        keys: Mapping[str, EllipticCurvePublicKey] | None = None,
        private_key: EllipticCurvePrivateKey | None = None,
    ) -> None:
        """Send as `sender_id`; without `rules`, believe every sender."""
        self.sender_id = sender_id
        self.private_key = private_key
        self._rules = dict(rules or {})
        self._keys = dict(keys or {})
        self._topics = {name: _patterns(rule) for name, rule in self._rules.items()}
        self._seen: OrderedDict[bytes, int] = OrderedDict()

    @property
    def signed(self) -> bool:
        """Whether any sender must sign."""
        return bool(self._keys)

    def fault(self, sender: str, channel: BusChannel, topic: str | None) -> str | None:
        """Return why a sender may not send this; None if it may."""
        if not self._rules:
            return None
        rule = self._rules.get(sender)
        if rule is None:
            return "unknown"
        if rule.channels and channel not in rule.channels:
            return f"may not send on {channel}"
        allowed = self._topics[sender]
        if topic is not None and allowed is not None and allowed.route(topic) is None:
            return "may not submit to the topic"
        return None

    def key(self, sender: str) -> EllipticCurvePublicKey | None:
        """Return the key that a sender must sign with."""
        return self._keys.get(sender)

    def is_recent(self, sent_at: int, now: int) -> bool:
        """Return whether a packet was sent within the window."""
        return abs(now - sent_at) <= WINDOW

    def has_seen(self, signed: bytes, now: int | None) -> bool:
        """Return whether a packet came before, and remember it for as long as it is believed.

        `signed` is what its signature covers.
        """
        key = blake2b(signed, digest_size=16).digest()
        if key in self._seen:
            return True
        self._seen[key] = now or 0
        while len(self._seen) > MOST_SEEN or self._is_over(now):
            self._seen.popitem(last=False)
        return False

    def _is_over(self, now: int | None) -> bool:
        oldest = next(iter(self._seen.values()))
        return now is not None and now - oldest > 2 * WINDOW


def _patterns(rule: SenderRule) -> Topics | None:
    if not rule.topics:
        return None
    return Topics(routes={pattern: Route(queue="any") for pattern in rule.topics})


def read_trust(sender_id: str, rules: Mapping[str, SenderRule], private_key: str | None) -> Trust:
    """Read the keys that the rules name."""
    keys = {
        name: read_public_key(Path(rule.public_key))
        for name, rule in rules.items()
        if rule.public_key is not None
    }
    own = None if private_key is None else read_private_key(Path(private_key))
    return Trust(sender_id, rules=rules, keys=keys, private_key=own)


def read_public_key(path: Path) -> EllipticCurvePublicKey:
    """Read a public key in PEM; only P-256 will do."""
    try:
        key = load_pem_public_key(_read(path))
    except ValueError as error:
        raise BadConfig(f"{path} has no public key in PEM: {error}") from None
    if not isinstance(key, EllipticCurvePublicKey) or not isinstance(key.curve, SECP256R1):
        raise BadConfig(f"{path} must have a key of the curve P-256")
    return key


def read_private_key(path: Path) -> EllipticCurvePrivateKey:
    """Read a private key in PEM, without a password; only P-256 will do."""
    try:
        key = load_pem_private_key(_read(path), password=None)
    except (ValueError, TypeError):
        # Not the error's own text: it may have a piece of the key.
        raise BadConfig(f"{path} has no private key in PEM without a password") from None
    if not isinstance(key, EllipticCurvePrivateKey) or not isinstance(key.curve, SECP256R1):
        raise BadConfig(f"{path} must have a key of the curve P-256")
    return key


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadConfig(f"{path} cannot be read: {error.strerror}") from None
