"""Ids are fresh, in order of time, and the same kind of thing as any UUID."""

from __future__ import annotations

import os
import pickle
from uuid import RFC_4122, UUID

import pytest

from holdfast import ids
from holdfast.ids import mint_id, mint_ids

DRAWS = 1200
"""More than are drawn from the system at once."""


def test_an_id_is_an_ordinary_uuid_of_version_7() -> None:
    id_ = mint_id()
    same = UUID(str(id_))
    assert type(id_) is UUID
    assert (id_, hash(id_), repr(id_), id_.is_safe) == (same, hash(same), repr(same), same.is_safe)
    assert (id_.version, id_.variant) == (7, RFC_4122)
    assert pickle.loads(pickle.dumps(id_)) == id_


def test_what_is_drawn_never_comes_twice() -> None:
    assert len({mint_id() for _ in range(DRAWS)}) == DRAWS
    assert len({ids._draw_random() for _ in range(DRAWS)}) == DRAWS


def test_ids_are_in_the_order_of_time() -> None:
    ids = [mint_id() for _ in range(DRAWS)]
    millis = [id_.int >> 80 for id_ in ids]
    assert millis == sorted(millis)


def test_a_forked_child_draws_other_ids_than_its_parent() -> None:
    mint_id()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, b"%d" % ids._draw_random())
        os._exit(0)
    os.waitpid(child, 0)
    drawn = int(os.read(reading, 100))
    os.close(reading)
    os.close(writing)
    assert drawn not in {ids._draw_random() for _ in range(DRAWS)}


def test_many_ids_are_different_and_in_order() -> None:
    many = [UUID(bytes=id_) for id_ in mint_ids(DRAWS)]
    assert len(set(many)) == DRAWS
    assert many == sorted(many)
    assert {(id_.version, id_.variant) for id_ in many} == {(7, RFC_4122)}
    assert len({id_.int >> 64 for id_ in many}) == 1, "they share one look at the clock"


def test_many_ids_are_in_order_with_those_minted_before_and_after(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticks = iter(range(1_700_000_000_000_000_000, 1_700_000_000_001_000_000, 1000))
    monkeypatch.setattr("holdfast.ids.time.time_ns", lambda: next(ticks))
    # The most that may be drawn: neither the start nor the steps reach what lies above them.
    monkeypatch.setattr(ids, "_draw_random", lambda: 2**64 - 1)
    monkeypatch.setattr("holdfast.ids.os.urandom", lambda size: b"\xff" * size)
    before, many, after = mint_id(), mint_ids(DRAWS), mint_id()
    ordered = [before.bytes, *many, after.bytes]
    assert ordered == sorted(ordered)
    assert {UUID(bytes=id_).version for id_ in many} == {7}


def test_no_ids_are_minted_where_none_are_wanted() -> None:
    assert mint_ids(0) == []
