"""A commit on SQLite sets the columns that a change touches, and none is forgotten."""

from msgspec.structs import replace

from holdfast.lifecycle.record import NO_FACTS
from holdfast.lifecycle.transitions import ORDINARY
from holdfast.stores.columns import JOB_COLUMNS
from holdfast.stores.schema_sql import FIXED
from holdfast.stores.sqlite.rows import ORDINARY_COLUMNS, VARYING, list_touched
from holdfast.stores.sqlite.turn import repeat_values
from tests.lifecycle.histories import random_histories


def test_every_column_is_fixed_set_by_every_change_or_varying() -> None:
    always = ("rev", "updated_at", "version")
    assert sorted((*FIXED, *always, *VARYING)) == sorted(JOB_COLUMNS)


def test_what_is_not_touched_is_as_it_was() -> None:
    for history in random_histories(300, seed=5):
        for before, after in zip(history.records, history.records[1:], strict=False):
            names = {"rev", "updated_at", *list_touched(before, after)}
            if "pending_signals" in names:
                # The column is a count of rows of another table.
                names = names - {"pending_signals"} | {"signals", "unread_signals"}
            assert replace(before, **{name: getattr(after, name) for name in names}) == after


def test_an_ordinary_event_touches_no_more_than_is_set_for_it() -> None:
    seen = set()
    for history in random_histories(5000, seed=6):
        steps = zip(history.records, history.records[1:], history.events[1:], strict=False)
        for before, after, event in steps:
            if event.type in ORDINARY and event.facts is NO_FACTS:
                assert set(list_touched(before, after)) <= set(ORDINARY_COLUMNS), event
                seen.add(event.type)
    assert seen == ORDINARY


def test_a_statement_for_many_rows_repeats_its_values() -> None:
    sql = "WITH d(id) AS (VALUES (?, ?, 1)) UPDATE jobs SET x = ? FROM d"
    assert repeat_values(sql, 1) == sql
    assert repeat_values(sql, 2) == (
        "WITH d(id) AS (VALUES (?, ?, 1), (?, ?, 1)) UPDATE jobs SET x = ? FROM d"
    )
