"""Requests to strangers' addresses: never to what is inside, whatever its name says."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from ipaddress import ip_address
from typing import Any

import pytest

from holdfast.errors import AddressBlocked, BadData, Undelivered
from holdfast.webhooks.egress import Outside, Reply, is_public, read_networks, read_target
from tests.webhooks.receiver import Receiver

HERE = read_networks(["127.0.0.0/8"])
PUBLIC = "93.184.215.14"

INTERNAL = [
    "127.0.0.1", "127.9.9.9", "0.0.0.0", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.1.1",
    "169.254.169.254", "100.64.0.1", "192.0.0.1", "192.0.2.1", "198.18.0.1", "198.51.100.1",
    "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
    "::", "::1", "fe80::1", "fc00::1", "fd12:3456::1", "fec0::1", "ff02::1", "2001:db8::1",
    "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1",
    "2002:7f00:1::", "2002:a00:1::1", "64:ff9b::127.0.0.1", "64:ff9b::a00:1", "64:ff9b:1::1",
    "2001:0:4136:e378:8000:63bf:80ff:fffe",
]  # fmt: skip


@pytest.mark.parametrize("address", INTERNAL)
def test_what_is_not_everybodys_is_not_public(address: str) -> None:
    assert not is_public(ip_address(address))


RANGES = {
    "0.0.0.0/8": ("0.0.0.0", "0.255.255.255", "1.0.0.0"),
    "10.0.0.0/8": ("10.0.0.0", "10.255.255.255", "11.0.0.0"),
    "100.64.0.0/10": ("100.64.0.0", "100.127.255.255", "100.128.0.0"),
    "127.0.0.0/8": ("127.0.0.0", "127.255.255.255", "128.0.0.0"),
    "169.254.0.0/16": ("169.254.0.0", "169.254.255.255", "169.255.0.0"),
    "172.16.0.0/12": ("172.16.0.0", "172.31.255.255", "172.32.0.0"),
    "192.0.0.0/24": ("192.0.0.0", "192.0.0.255", "192.0.1.0"),
    "dummy": ("192.0.0.8", "192.0.0.8", "192.0.1.8"),
    "anycast in 192.0.0.0/24": ("192.0.0.9", "192.0.0.10", "192.0.1.9"),
    "192.0.2.0/24": ("192.0.2.0", "192.0.2.255", "192.0.3.0"),
    "192.88.99.0/24": ("192.88.99.0", "192.88.99.255", "192.88.100.0"),
    "192.168.0.0/16": ("192.168.0.0", "192.168.255.255", "192.169.0.0"),
    "198.18.0.0/15": ("198.18.0.0", "198.19.255.255", "198.20.0.0"),
    "198.51.100.0/24": ("198.51.100.0", "198.51.100.255", "198.51.101.0"),
    "203.0.113.0/24": ("203.0.113.0", "203.0.113.255", "203.0.114.0"),
    "224.0.0.0/4": ("224.0.0.0", "239.255.255.255", "223.255.255.255"),
    "240.0.0.0/4": ("240.0.0.0", "255.255.255.255", "223.255.255.254"),
    "below 2000::/3": ("::", "1fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "2000::"),
    "above 2000::/3": ("4000::", "ffff::", "3ffe:ffff::"),
    "100::/64": ("100::", "100::ffff:ffff:ffff:ffff", "2400::"),
    "2001::/23": ("2001::", "2001:1ff:ffff::ffff", "2001:200::"),
    "2001:db8::/32": ("2001:db8::", "2001:db8:ffff::ffff", "2001:db9::"),
    "2002::/16": ("2002::", "2002:ffff::ffff", "2003::"),
    "2002::/16 around a public address": ("2002:101:101::", "2002:101:101::1", "2003::1"),
    "3fff::/20": ("3fff::", "3fff:fff:ffff::ffff", "3fff:1000::"),
    "5f00::/16": ("5f00::", "5f00:ffff::ffff", "2a00::"),
    "64:ff9b::/96 around 10.0.0.0/8": ("64:ff9b::a00:0", "64:ff9b::aff:ffff", "64:ff9b::b00:0"),
    "64:ff9b:1::/48": ("64:ff9b:1::", "64:ff9b:1:ffff::101:101", "64:ff9b::101:101"),
    "::ffff:0:0/96 around 10.0.0.0/8": ("::ffff:a00:0", "::ffff:aff:ffff", "::ffff:b00:0"),
    "fc00::/7": ("fc00::", "fdff:ffff::ffff", "2600::"),
    "fe80::/10": ("fe80::", "febf:ffff::ffff", "2600::1"),
    "fec0::/10": ("fec0::", "feff:ffff::ffff", "2600::2"),
    "ff00::/8": ("ff00::", "ffff:ffff::ffff", "2600::3"),
}
"""Of each range the first and the last address, and one beside it that is public."""


@pytest.mark.parametrize(("first", "last", "beside"), RANGES.values(), ids=RANGES)
def test_each_special_range_is_not_public_from_end_to_end(
    first: str, last: str, beside: str
) -> None:
    assert not is_public(ip_address(first))
    assert not is_public(ip_address(last))
    assert is_public(ip_address(beside))


@pytest.mark.parametrize(
    "address",
    [PUBLIC, "1.1.1.1", "2606:4700:4700::1111", "64:ff9b::101:101", "::ffff:1.1.1.1"],
)
def test_what_is_everybodys_is_public(address: str) -> None:
    assert is_public(ip_address(address))


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0x7f000001", "0177.0.0.1", "127.0.0.1."])
def test_an_address_in_an_old_notation_is_refused(host: str) -> None:
    with pytest.raises(BadData, match="four decimal numbers"):
        read_target(f"http://{host}/")


@pytest.mark.parametrize("host", ["localhost", "a.localhost"])
def test_a_name_of_this_machine_is_refused_at_once(host: str) -> None:
    with pytest.raises(AddressBlocked):
        Outside().check(f"http://{host}/")
    assert Outside(allow=HERE).check(f"http://{host}/").host == host


async def test_what_a_name_resolves_to_is_for_the_operator_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    outside = Outside(resolve=Names(["10.9.8.7"]))
    with pytest.raises(AddressBlocked) as blocked:
        await outside.post("http://inside.example/", {}, b"")
    assert "10.9.8.7" not in str(blocked.value)
    assert "inside.example" in str(blocked.value)
    assert "10.9.8.7" in caplog.text


async def test_a_refused_connection_does_not_name_the_address() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        outside = Outside(allow=HERE, resolve=Names(["127.0.0.1"]))
        with pytest.raises(Undelivered) as failed:
            await outside.post(f"http://inside.example:{port}/", {}, b"")
    assert "127.0.0.1" not in str(failed.value)
    assert "Connection refused" in str(failed.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "1 to 2000"),
        ("http://a/" + "x" * 2000, "1 to 2000"),
        ("ftp://a/", "http:// or https://"),
        ("file:///etc/passwd", "http:// or https://"),
        ("//a/", "http:// or https://"),
        ("https:///path", "http:// or https://"),
        ("http://user:pass@a/", "no user or password"),
        ("http://a/#part", "no fragment"),
        ("http://a/ b", "printable ASCII"),
        ("http://a/\r\nX-Evil: 1", "printable ASCII"),
        ("http://bücher.example/", "punycode"),
        ("http://a\\b/", "printable ASCII"),
        ("http://a:99999/", "invalid url"),
        ("http://a:0/", "port must not be 0"),
        ("http://a:b/", "invalid url"),
        ("http://[::1/", "invalid url"),
    ],
)
def test_a_url_that_is_none_is_refused(url: str, said: str) -> None:
    with pytest.raises(BadData, match=said):
        read_target(url)


def test_a_url_is_read_into_its_parts() -> None:
    target = read_target("https://Example.COM/a/b?c=d&e")
    assert (target.host, target.port, target.path) == ("example.com", 443, "/a/b?c=d&e")
    assert target.authority == "example.com"
    odd = read_target("http://[2606:4700::1111]:8080")
    assert (odd.authority, odd.path) == ("[2606:4700::1111]:8080", "/")


@pytest.mark.parametrize("address", INTERNAL)
def test_a_url_that_names_an_internal_address_is_refused_at_once(address: str) -> None:
    host = f"[{address}]" if ":" in address else address
    with pytest.raises(AddressBlocked, match="not public"):
        Outside().check(f"http://{host}/")


class Names:
    """A resolver that answers each question as it is told to, the last answer for ever."""

    def __init__(self, *answers: list[str]) -> None:
        self._answers = list(answers)
        self.asked: list[tuple[str, int]] = []

    async def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append((host, port))
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


class Connections:
    """Stands in for the network: keeps who was called, and answers 200."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, receiver: Receiver) -> None:
        self.made: list[tuple[str, int, dict[str, Any]]] = []
        self._receiver = receiver
        self._open = asyncio.open_connection
        monkeypatch.setattr("holdfast.webhooks.egress.asyncio.open_connection", self.connect)

    async def connect(self, host: str, port: int, **wishes: Any) -> Any:
        self.made.append((host, port, wishes))
        return await self._open("127.0.0.1", self._receiver.port)


@pytest.fixture
async def connections(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Connections]:
    async with Receiver(b"HTTP/1.1 200 OK\r\n\r\n") as receiver:
        yield Connections(monkeypatch, receiver)


@pytest.mark.parametrize("address", INTERNAL)
async def test_a_name_that_leads_inside_is_refused_and_nothing_is_sent(
    connections: Connections, address: str
) -> None:
    outside = Outside(resolve=Names([address]))
    with pytest.raises(AddressBlocked, match="resolves to"):
        await outside.post("https://hooks.example/", {}, b"{}")
    assert connections.made == []


@pytest.mark.parametrize("answer", [[PUBLIC, "127.0.0.1"], ["10.0.0.1", PUBLIC]])
async def test_a_name_that_leads_both_ways_is_refused(
    connections: Connections, answer: list[str]
) -> None:
    with pytest.raises(AddressBlocked):
        await Outside(resolve=Names(answer)).post("http://hooks.example/", {}, b"{}")
    assert connections.made == []


async def test_a_name_that_changes_its_mind_is_asked_once_and_what_was_judged_is_called(
    connections: Connections,
) -> None:
    rebinding = Names([PUBLIC], ["127.0.0.1"])
    outside = Outside(resolve=rebinding)
    reply = await outside.post("http://hooks.example:8080/", {}, b"{}")

    assert reply.status == 200
    assert rebinding.asked == [("hooks.example", 8080)]
    assert [(host, port) for host, port, _ in connections.made] == [(PUBLIC, 8080)]
    with pytest.raises(AddressBlocked):
        await outside.post("http://hooks.example:8080/", {}, b"{}")
    assert len(connections.made) == 1


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "127.1", "0177.0.0.1", "localhost"])
async def test_other_spellings_of_an_internal_address_are_refused(
    connections: Connections, host: str
) -> None:
    with pytest.raises((AddressBlocked, BadData)):
        await Outside().post(f"http://{host}/", {}, b"{}")
    assert connections.made == []


async def test_the_certificate_must_be_the_names_though_its_address_is_called(
    connections: Connections,
) -> None:
    await Outside(resolve=Names([PUBLIC])).post("https://hooks.example/", {}, b"{}")
    [(host, port, wishes)] = connections.made
    assert (host, port, wishes["server_hostname"]) == (PUBLIC, 443, "hooks.example")
    assert wishes["ssl"].verify_mode is ssl.CERT_REQUIRED
    assert wishes["ssl"].check_hostname


async def test_a_body_arrives_as_it_was_sent() -> None:
    async with Receiver() as receiver:
        outside = Outside(allow=HERE)
        reply = await outside.post(receiver.url, {"X-One": "1"}, b'{"a":"\xc3\xbc"}')
    assert reply == Reply(204)
    [request] = receiver.requests
    assert request.line == "POST /hook?a=1 HTTP/1.1"
    assert request.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert request.headers["x-one"] == "1"
    assert request.body == b'{"a":"\xc3\xbc"}'


async def test_a_redirect_is_told_and_not_followed() -> None:
    async with Receiver() as inside:
        to = f"HTTP/1.1 302 Found\r\nLocation: {inside.url}\r\n\r\n".encode()
        async with Receiver(to) as receiver:
            reply = await Outside(allow=HERE).post(receiver.url, {}, b"{}")
    assert reply.status == 302
    assert inside.requests == []


async def test_an_answer_says_when_to_come_again() -> None:
    interim = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
    answers = {
        b"Retry-After: 7": 7.0,
        b"Retry-After: Fri, 31 Dec 1999 23:59:59 GMT": None,
        b"Retry-After: -1": None,
    }
    for header, seconds in answers.items():
        answer = interim + b"HTTP/1.1 503 Busy\r\n" + header + b"\r\n\r\nbusy"
        async with Receiver(answer) as receiver:
            reply = await Outside(allow=HERE).post(receiver.url, {}, b"{}")
        assert reply == Reply(503, seconds)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"SSH-2.0-OpenSSH\r\n", id="another protocol"),
        pytest.param(b"HTTP/1.1 2xx OK\r\n\r\n", id="no number"),
        pytest.param(b"HTTP/1.1 200 OK\r\nA: " + b"x" * 20_000, id="an endless line"),
        pytest.param(b"HTTP/1.1 200 OK\r\n" + b"A: 1\r\n" * 1000, id="endless headers"),
        pytest.param(b"HTTP/1.1 103 Wait\r\n\r\n" * 10, id="endless hints"),
    ],
)
async def test_an_answer_that_is_none_is_a_failure(answer: bytes) -> None:
    async with Receiver(answer) as receiver:
        with pytest.raises(Undelivered, match="could not be reached"):
            await Outside(allow=HERE).post(receiver.url, {}, b"{}")


async def test_an_address_where_nobody_listens_is_a_failure() -> None:
    async with Receiver() as receiver:
        url = receiver.url
    with pytest.raises(Undelivered, match="could not be reached"):
        await Outside(allow=HERE).post(url, {}, b"{}")


async def test_a_name_that_nobody_knows_is_a_failure() -> None:
    with pytest.raises(Undelivered, match="has no address"):
        await Outside(resolve=Names([])).post("http://hooks.example/", {}, b"{}")


async def test_a_receiver_that_never_answers_is_given_up() -> None:
    outside = Outside(allow=HERE, timeout_seconds=0.2)
    async with Receiver(None) as silent:
        with pytest.raises(Undelivered, match=r"did not answer within 0\.2 s"):
            await outside.post(silent.url, {}, b"{}")


def test_networks_are_read_or_refused() -> None:
    assert [str(one) for one in read_networks(["10.0.0.0/8", "fd00::/8"])] == [
        "10.0.0.0/8",
        "fd00::/8",
    ]
    with pytest.raises(BadData, match="invalid network"):
        read_networks(["ten"])
