"""Signatures: a receiver tells a genuine message from a forged, changed or replayed one."""

from __future__ import annotations

import pytest

from holdfast.errors import BadData, ValidationError
from holdfast.webhooks.signature import check_signature, sign_headers

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
BODY = b'{"test": 2432232314}'
HEADERS = sign_headers(SECRET, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, BODY)
NOW = 1614265330.0


def test_a_message_is_signed_as_the_standard_says() -> None:
    """The example of the specification, whose signature other libraries check."""
    assert HEADERS == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_a_genuine_message_is_taken_and_named() -> None:
    assert check_signature(SECRET, HEADERS, BODY, now=NOW) == "msg_p5jXN8AQM9LWM0D4loKWxJek"
    several = HEADERS | {"webhook-signature": f"v1,b2xk {HEADERS['webhook-signature']}"}
    assert check_signature(SECRET, several, BODY, now=NOW)


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        pytest.param(HEADERS, BODY + b" ", id="another body"),
        pytest.param(HEADERS | {"webhook-id": "msg_other"}, BODY, id="another id"),
        pytest.param(HEADERS | {"webhook-timestamp": "1614265331"}, BODY, id="another time"),
        pytest.param(HEADERS | {"webhook-signature": "v1,AAAA"}, BODY, id="another signature"),
        pytest.param(HEADERS | {"webhook-signature": ""}, BODY, id="no signature"),
        pytest.param(
            HEADERS | {"webhook-signature": HEADERS["webhook-signature"].replace("v1", "v2")},
            BODY,
            id="another version",
        ),
    ],
)
def test_a_changed_message_is_not_taken(headers: dict[str, str], body: bytes) -> None:
    with pytest.raises(ValidationError, match="does not match this message"):
        check_signature(SECRET, headers, body, now=NOW)


def test_a_message_of_another_secret_is_not_taken() -> None:
    with pytest.raises(ValidationError, match="does not match this message"):
        check_signature("whsec_AAAA", HEADERS, BODY, now=NOW)


@pytest.mark.parametrize("age", [-301, 301])
def test_an_old_or_a_future_message_is_not_taken(age: int) -> None:
    with pytest.raises(ValidationError, match="may be a replay"):
        check_signature(SECRET, HEADERS, BODY, now=NOW + age)
    with pytest.raises(ValidationError, match="may be a replay"):
        check_signature(SECRET, HEADERS, BODY)


@pytest.mark.parametrize("missing", list(HEADERS))
def test_a_message_that_is_not_signed_is_not_taken(missing: str) -> None:
    headers = {name: value for name, value in HEADERS.items() if name != missing}
    with pytest.raises(ValidationError, match="not signed"):
        check_signature(SECRET, headers, BODY, now=NOW)
    with pytest.raises(ValidationError, match="not signed"):
        check_signature(SECRET, HEADERS | {"webhook-timestamp": "now"}, BODY, now=NOW)


def test_a_secret_that_is_none_is_said_to_be() -> None:
    with pytest.raises(BadData, match="whsec_ followed by base64"):
        check_signature("whsec_!", HEADERS, BODY, now=NOW)
