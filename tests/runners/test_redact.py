"""Values of secrets are masked in a log, wherever a writer or a reader cuts it."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.queries.log_records import OutputStream, read_record
from holdfast.runners.command import redact
from holdfast.runners.command.redact import HELD_BYTES, Redactor
from tests.support.spool import record

SECRETS = st.lists(st.text("ab", min_size=1, max_size=9).map(str.encode), min_size=1, max_size=3)
RECORDS = st.lists(
    st.builds(
        record,
        st.text("abc", max_size=12).map(str.encode),
        st.sampled_from(["stdout", "stderr"]),
        st.sampled_from("FP"),
    ),
    max_size=14,
).map(b"".join)


def redacted(data: bytes, secrets: list[bytes], cuts: list[int]) -> bytes:
    """Redact a log that comes in parts; each part that is final is whole records."""
    redactor = Redactor(secrets)
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    out = b""
    for start, end in pairwise(places):
        final = redactor.feed(data[start:end])
        assert final == b"" or final.endswith(b"\n")
        out += final
        assert redactor.position == len(out)
    return out + redactor.finish()


def lines_of(data: bytes) -> list[tuple[bytes, list[int]]]:
    """Return each line of each stream: its text, and where each byte of it is in the log."""
    done: list[tuple[bytes, list[int]]] = []
    open_lines: dict[OutputStream, tuple[bytes, list[int]]] = {}
    end = 0
    for line in data.splitlines(keepends=True):
        end += len(line)
        one = read_record(line.removesuffix(b"\n"), end)
        text, places = open_lines.pop(one.stream, (b"", []))
        last = end - line.endswith(b"\n")
        joined = (text + one.text, [*places, *range(last - len(one.text), last)])
        if one.is_last:
            done.append(joined)
        else:
            open_lines[one.stream] = joined
    return [*done, *open_lines.values()]


def expected(data: bytes, secrets: list[bytes]) -> bytes:
    """Mask by looking at everything at once."""
    masked = bytearray(data)
    for text, places in lines_of(data):
        for secret in secrets:
            for start in range(len(text) - len(secret) + 1):
                if len(secret) >= 4 and text[start : start + len(secret)] == secret:
                    for place in places[start : start + len(secret)]:
                        masked[place] = ord("*")
    return bytes(masked)


def cut_off(data: bytes, secrets: list[bytes]) -> bytes:
    """Mask also what a log that ends within a value has of it."""
    masked = bytearray(data)
    for text, places in lines_of(data):
        for size in range(len(text), 3, -1):
            is_start = any(
                len(secret) > size and secret.startswith(text[-size:]) for secret in secrets
            )
            if is_start and _is_open(data, places):
                for place in places[-size:]:
                    masked[place] = ord("*")
    return bytes(masked)


def _is_open(data: bytes, places: list[int]) -> bool:
    start = data.rfind(b"\n", 0, places[-1]) + 1
    end = data.find(b"\n", places[-1])
    return not read_record(data[start : end if end >= 0 else None], 0).is_last


@settings(max_examples=500, deadline=None)
@given(
    data=RECORDS,
    secrets=SECRETS,
    cuts=st.lists(st.integers(min_value=0, max_value=900), max_size=8),
)
@example(data=record("xabab", tag="P") + record("ab"), secrets=[b"abab"], cuts=[3, 60])
@example(
    data=record("ab", tag="P") + record("", tag="P") + record("ab"), secrets=[b"abab"], cuts=[]
)
def test_every_value_is_masked_and_nothing_else(
    data: bytes, secrets: list[bytes], cuts: list[int]
) -> None:
    out = redacted(data, secrets, cuts)
    assert len(out) == len(data)
    assert out == cut_off_of(data, secrets)
    for text, _ in lines_of(out):
        assert not any(len(secret) >= 4 and secret in text for secret in secrets)


def cut_off_of(data: bytes, secrets: list[bytes]) -> bytes:
    """Return what is to be shown of a log."""
    both = zip(expected(data, secrets), cut_off(data, secrets), strict=True)
    return bytes(ord("*") if ord("*") in pair else pair[0] for pair in both)


@settings(max_examples=200, deadline=None)
@given(
    data=st.lists(
        st.one_of(st.binary(max_size=90), st.just(record("abcd", tag="P"))), max_size=6
    ).map(b"".join),
    cuts=st.lists(st.integers(min_value=0, max_value=900), max_size=8),
)
def test_any_bytes_keep_their_places(data: bytes, cuts: list[int]) -> None:
    assert redacted(data, [], cuts) == data
    assert len(redacted(data, [b"cdab"], cuts)) == len(data)


def test_a_value_of_several_lines_is_masked_line_by_line() -> None:
    secret = b"-----KEY-----\r\nMIIEpA\nab=\n-----END-----\n"
    data = record("x MIIEpA y") + record("ab=") + record("-----END-----")
    shown = record("x ****** y") + record("ab=") + record("*************")
    assert redacted(data, [secret], []) == shown


def test_a_short_value_is_not_masked() -> None:
    data = record("abc abc")
    assert redacted(data, [b"abc", b""], []) == data


def test_the_header_of_a_record_is_not_masked() -> None:
    data = record("stdout 2023", "stdout")
    assert redacted(data, [b"stdout", b"2023-11"], []) == record("****** 2023", "stdout")


def test_what_may_be_the_start_of_a_value_is_held_back() -> None:
    redactor = Redactor([b"hunter22"])
    assert redactor.feed(record("one") + record("my hunt", tag="P")) == record("one")
    assert not redactor.delays_others()
    assert redactor.feed(record("warn", "stderr")) == b""
    assert redactor.delays_others()
    shown = record("my ****", tag="P") + record("warn", "stderr") + record("**** yes")
    assert redactor.feed(record("er22 yes")) == shown
    assert not redactor.delays_others()


def test_what_is_released_early_is_masked_and_so_is_its_rest() -> None:
    redactor = Redactor([b"hunter22"])
    assert redactor.feed(record("my hunt", tag="P") + record("warn", "stderr")) == b""
    assert redactor.release() == record("my ****", tag="P") + record("warn", "stderr")
    assert redactor.feed(record("er", tag="P")) == b""
    assert redactor.feed(record("22")) == record("**", tag="P") + record("**")


def test_output_behind_an_open_line_takes_bounded_memory() -> None:
    redactor = Redactor([b"hunter22"])
    redactor.feed(record("hunt", tag="P"))
    out = b"".join(redactor.feed(record(1000 * b"x", "stderr")) for _ in range(1000))
    assert len(out) > 1000 * 1000 - HELD_BYTES


@pytest.mark.parametrize("secrets", [[], [b"wwwwwwwV"]])
def test_a_record_without_an_end_takes_bounded_memory(
    secrets: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redact, "PIECE_BYTES", 1000)
    redactor = Redactor(secrets)
    data = record(10_000 * b"w" + b"V")[:-1]
    out = b"".join(redactor.feed(data[at : at + 100]) for at in range(0, len(data), 100))
    assert len(out) > 8_000
    out += redactor.finish()
    assert len(out) == len(data)
    assert out.endswith(b"w********" if secrets else b"wwwwV")
