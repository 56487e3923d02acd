"""What PostgreSQL checks of a job row, written from the law: its invariants, and what is derived.

PostgreSQL reads the text of every CHECK again each time a statement runs, so the CHECK holds a
short test that plain rows pass, and calls a function for all others. The function is read once per
connection, tests every rule by itself and names those that a row breaks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from msgspec import Struct

from holdfast.lifecycle.claim_order import AGEING
from holdfast.lifecycle.invariants import RULES, attempts_in
from holdfast.lifecycle.states import CLAIMABLE, TERMINAL, Link, Retention, State
from holdfast.stores.columns import JOB_COLUMNS

PLAIN_STATES = (State.SUCCEEDED, State.CLAIMED, State.QUEUED, State.RUNNING)
"""The states of most rows that are written, the most frequent first."""


class Derived(Struct, frozen=True):
    """A column that follows from others: its SQL, and what is left of it in a plain row."""

    sql: str
    plain: Callable[[State], str | None]
    """What it is in a state while no column of `UNCOMMON` is set; None for NULL."""


def codes(states: Iterable[State]) -> str:
    """List states by code."""
    return ", ".join(str(code) for code in sorted(state.code for state in states))


def claim_order() -> str:
    """Write the order in which jobs of a range are claimed; NULL for one that may not be."""
    return (
        f"CASE WHEN state IN ({codes(CLAIMABLE)}) AND held_by IS NULL AND quarantined_at IS NULL "
        f"THEN {_aged()} END"
    )


def _aged() -> str:
    offsets = " ".join(f"WHEN {klass.code} THEN {offset}" for klass, offset in AGEING.items())
    return f"run_at + CASE priority {offsets} END"


def wake_at() -> str:
    """Write when a sweep has to look at a job of its own accord; NULL for one that it need not.

    A running job past its timeout is its owner's to kill; if that fell silent, a lease passes.
    """
    own = f"WHEN {State.CLAIMED.code} THEN timeout_at WHEN {State.WAITING.code} THEN run_at"
    return (
        f"CASE WHEN state NOT IN ({codes(TERMINAL)}) AND quarantined_at IS NULL "
        f"THEN least(deadline_at, CASE state {own} END) END"
    )


def live_parent_id() -> str:
    """Write whose live child a job is; NULL for nobody's, before its end as after it."""
    return (
        f"CASE WHEN state NOT IN ({codes(TERMINAL)}) AND link_kind = {Link.CHILD.code} "
        "THEN parent_id END"
    )


DERIVED = {
    "claim_order": Derived(claim_order(), lambda state: _aged() if state in CLAIMABLE else None),
    "wake_at": Derived(wake_at(), lambda state: "run_at" if state is State.WAITING else None),
    "live_parent_id": Derived(live_parent_id(), lambda state: None),
}
"""Columns that follow from others of the row. On PostgreSQL the statements write them."""
UNCOMMON = (
    *("held_by", "quarantined_at", "deadline_at", "timeout_at", "link_kind"),
    *("cancel_requested", "exit_code", "result_ptr", "late_results", "lost_owner"),
)
"""What few rows have: the columns that the derived ones also follow from, and those of commands,
of cancelled and of lost jobs. A plain row has none, which is tested for all states at once."""


def rules() -> dict[str, str]:
    """Name all that must hold of a job row: the invariants, and that what follows does so."""
    derived = {
        f"{name}_derived": f"{name} IS NOT DISTINCT FROM {one.sql}" for name, one in DERIVED.items()
    }
    return {rule.name: rule.sql for rule in RULES} | derived


def lawful() -> str:
    """Write all of it as one condition."""
    return "\n        AND ".join(f"({sql})" for sql in rules().values())


def broken() -> str:
    """List the names of the rules that are broken, the others as NULL."""
    return ",\n        ".join(
        f"CASE WHEN NOT ({sql}) THEN '{name}' END" for name, sql in rules().items()
    )


_COLUMN = re.compile(rf"\b({'|'.join((*JOB_COLUMNS, 'quarantined_at', *DERIVED))})\b")


def of_row(sql: str) -> str:
    """Write a condition on columns as one on a row `j`."""
    return _COLUMN.sub(r"j.\1", sql)


_PLAIN: dict[str, Callable[[State], str]] = {
    "state_known": lambda state: "",
    "retention_terminal": lambda state: f"retention = {Retention.LIVE.code}",
    "attempt_by_state": attempts_in,
    "counters": lambda state: "rev >= 1 AND failures | releases | beats = 0",
    "beats_owned": lambda state: "",
}
"""What a plain row in a state has to meet so that a rule about more than one column's presence
holds. A heartbeat's count is 0 by the one about counters."""


def plain() -> str:
    """Write the test that a plain row passes, and none that breaks a rule."""
    absent = {state: _absent(state) for state in PLAIN_STATES}
    everywhere = [
        name for name in absent[PLAIN_STATES[0]] if all(name in one for one in absent.values())
    ]
    tests = {state: _tests(state) for state in PLAIN_STATES}
    shared = [test for test in tests[PLAIN_STATES[0]] if all(test in one for one in tests.values())]
    branches = []
    for state in PLAIN_STATES:
        own = [name for name in absent[state] if name not in everywhere]
        conditions = [_count(own, _present(state))]
        conditions += [test for test in tests[state] if test not in shared]
        branches.append(f"WHEN {state.code} THEN {' AND '.join(filter(None, conditions))}")
    return (
        f"{' AND '.join([_count(everywhere, []), *shared])}\n        AND CASE state "
        + "\n            ".join(branches)
        + " ELSE false END"
    )


def _absent(state: State) -> list[str]:
    forbidden = [rule.column for rule in RULES if rule.column and state not in rule.allowed]
    derived = [name for name, one in DERIVED.items() if one.plain(state) is None]
    return list(dict.fromkeys([*forbidden, *UNCOMMON, *derived]))


def _present(state: State) -> list[str]:
    return [rule.column for rule in RULES if rule.column and state in rule.required]


def _tests(state: State) -> list[str]:
    tests = [_PLAIN[rule.name](state) for rule in RULES if not rule.column]
    derived = {name: one.plain(state) for name, one in DERIVED.items()}
    return [test for test in tests if test] + [
        f"{name} = {sql}" for name, sql in derived.items() if sql
    ]


def _count(absent: list[str], present: list[str]) -> str:
    """Write that all of these columns are NULL, and all of those are not, as one comparison."""
    counts = {"num_nonnulls": absent, "num_nulls": present}
    sums = [f"{name}({', '.join(columns)})" for name, columns in counts.items() if columns]
    return f"{' + '.join(sums)} = 0"
