"""A commit on SQLite sets the columns that a change touches, and none is forgotten."""

from msgspec.structs import replace

from holdfast.lifecycle.job import NO_FACTS
from holdfast.stores.columns import JOB_COLUMNS
from holdfast.stores.law import FIXED
from holdfast.stores.sqlite.session import for_rows
from holdfast.stores.sqlite.shapes import ORDINARY, ORDINARY_EVENTS, VARYING, touched
from tests.lifecycle.histories import random_histories


def test_every_column_is_fixed_set_by_every_change_or_varying() -> None:
    always = ("rev", "updated_at", "version")
    assert sorted((*FIXED, *always, *VARYING)) == sorted(JOB_COLUMNS)


def test_what_is_not_touched_is_as_it_was() -> None:
    for history in random_histories(300, seed=5):
        for before, after in zip(history.records, history.records[1:], strict=False):
            names = {"rev", "updated_at", *touched(before, after)}
            if "pending_signals" in names:
                # The column is a count of rows of another table.
                names = names - {"pending_signals"} | {"signals", "unread_signals"}
            assert replace(before, **{name: getattr(after, name) for name in names}) == after


def test_an_ordinary_event_touches_no_more_than_is_set_for_it() -> None:
    seen = set()
    for history in random_histories(1000, seed=6):
        steps = zip(history.records, history.records[1:], history.events[1:], strict=False)
        for before, after, event in steps:
            if event.type in ORDINARY_EVENTS and event.facts is NO_FACTS:
                assert set(touched(before, after)) <= set(ORDINARY), event
                seen.add(event.type)
    assert seen == ORDINARY_EVENTS


def test_a_statement_for_many_rows_repeats_its_values() -> None:
    sql = "WITH d(id) AS (VALUES (?, ?, 1)) UPDATE jobs SET x = ? FROM d"
    assert for_rows(sql, 1) == sql
    assert for_rows(sql, 2) == (
        "WITH d(id) AS (VALUES (?, ?, 1), (?, ?, 1)) UPDATE jobs SET x = ? FROM d"
    )
