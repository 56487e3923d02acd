"""Sign webhook messages, and check their signatures, as standardwebhooks.com describes."""

from __future__ import annotations

from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Mapping
from hashlib import sha256
from hmac import compare_digest
from hmac import new as hmac

from holdfast.errors import BadData, ValidationError
from holdfast.ids import unix_seconds

PREFIX = "whsec_"
TOLERANCE_SECONDS = 300
"""How old a message may be that a receiver accepts: an older one may be a replay."""


def sign_headers(secret: str, id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the headers with a message's id, its time and its signature."""
    return {
        "webhook-id": id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{_compute_signature(secret, id, str(timestamp), body)}",
    }


def check_signature(
    secret: str,
    headers: Mapping[str, str],
    body: bytes,
    *,
    now: float | None = None,
    tolerance_seconds: float = TOLERANCE_SECONDS,
) -> str:
    """Check, as a receiver, that a message is genuine and recent; return its id.

    The id is the same at every try of one message: a receiver that keeps it can act once. `headers`
    have names in lower case; `now` is the time in seconds since 1970, by default the system's.
    Raise ValidationError if the message is not to be trusted.
    """
    try:
        id, sent, given = (headers[f"webhook-{name}"] for name in ("id", "timestamp", "signature"))
        age = (unix_seconds() if now is None else now) - int(sent)
    except (KeyError, ValueError) as error:
        raise ValidationError(f"the message is not signed: {error}") from error
    if abs(age) > tolerance_seconds:
        raise ValidationError(f"the message is {age:.0f} s old; it may be a replay")
    expected = f"v1,{_compute_signature(secret, id, sent, body)}".encode()
    if not any(compare_digest(expected, one.encode()) for one in given.split(" ")):
        raise ValidationError("the signature does not match this message and secret")
    return id


def _compute_signature(secret: str, id: str, timestamp: str, body: bytes) -> str:
    try:
        key = b64decode(secret.removeprefix(PREFIX), validate=True)
    except (NotBase64, ValueError) as error:
        raise BadData(f"a webhook's secret must be {PREFIX} followed by base64") from error
    text = f"{id}.{timestamp}.".encode() + body
    return b64encode(hmac(key, text, sha256).digest()).decode()
