"""docs/lifecycle.md: the lifecycle for readers, generated from the tables that the code uses."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from holdfast.lifecycle.dialects import DIALECTS, Dialect
from holdfast.lifecycle.dialects.dialect import Edge
from holdfast.lifecycle.invariants import RULES
from holdfast.lifecycle.record import Job, JobId, Record
from holdfast.lifecycle.states import (
    LIVE,
    OWNED,
    RANK,
    TERMINAL,
    EventType,
    Operation,
    Role,
    State,
)
from holdfast.lifecycle.transitions import STICKY, SUBMIT_TARGETS, TABLE, legal_events

STATES = tuple(state for state in State if state is not State.UNKNOWN)
NONE = "–"


def lifecycle_page() -> str:
    """Write the whole page."""
    sections = (
        _opening(),
        _diagram(),
        _operations(),
        _states(),
        _columns(),
        _vocabularies(),
        _events(),
        _dialect_notes(),
    )
    return "\n\n".join(sections) + "\n"


def _opening() -> str:
    return """# The lifecycle

Every job follows this lifecycle. `make docs` generates this page from `src/holdfast/lifecycle`; do
not edit it. [requirements.md](requirements.md) lists what must hold, and
[boundaries.md](boundaries.md) describes what the lifecycle does not decide."""


def _diagram() -> str:
    lines = [f"[*] --> {target}: submit" for target in SUBMIT_TARGETS]
    lines += [f"{source} --> {target}: {label}" for source, target, label in _arrows()]
    lines += ['state "any non-terminal state" as live']
    lines += [f"live --> {target}: {name}" for name, target in _from_anywhere()]
    lines += [f"{state} --> [*]" for state in STATES if state in TERMINAL]
    return "\n".join(
        [
            "## The diagram",
            "",
            "Operations that keep the state are not shown; the table below lists them.",
            "",
            "```mermaid",
            "stateDiagram-v2",
            *(f"    {line}" for line in lines),
            "```",
        ]
    )


def _arrows() -> list[tuple[State, State, str]]:
    """Return every change of state that is not possible from all states, with its operations."""
    everywhere = {name for name, _ in _from_anywhere()}
    labels: dict[tuple[State, State], list[str]] = {}
    for row in TABLE:
        for source in _in_order(row.sources):
            target = row.targets(source)
            if source is not target and row.operation not in everywhere:
                names = labels.setdefault((source, target), [])
                names += [] if row.operation in names else [row.operation]
    ordered = sorted(labels, key=lambda pair: (pair[0].code, pair[1].code))
    return [(source, target, ", ".join(labels[source, target])) for source, target in ordered]


def _from_anywhere() -> list[tuple[Operation, State]]:
    sources: dict[tuple[Operation, State], set[State]] = {}
    for row in TABLE:
        if row.target is not None:
            sources.setdefault((row.operation, row.target), set()).update(row.sources)
    return [pair for pair, states in sources.items() if states == LIVE]


def _operations() -> str:
    rows = [
        [
            "submit",
            NONE,
            ", ".join(SUBMIT_TARGETS),
            "gateway",
            _code(EventType.CREATED),
            "attempt 0, rev 1",
        ]
    ]
    for row in TABLE:
        rows.append(
            [
                row.operation + (" ⁺" if row.folds else ""),
                _sources(row.sources),
                row.target or "same",
                ", ".join(role for role in Role if role in row.roles),
                ", ".join(map(_code, row.events)),
                row.effect,
            ]
        )
    sticky = ", ".join(operation for operation in Operation if operation in STICKY)
    return "\n".join(
        [
            "## The operations",
            "",
            "Every operation that is not in this table is refused. `owner` is the worker that has",
            "the lease, identified by name and attempt. An operation with ⁺ may share one row",
            "update with others; each still has its own event.",
            "",
            *_table(("operation", "from", "to", "by", "event", "effect"), rows),
            "",
            f"After a cancel was requested, {sticky} become cancel.",
            "A dead_letter or time_out by the owner itself does not change.",
        ]
    )


def _sources(states: frozenset[State]) -> str:
    if states == LIVE:
        return "any non-terminal"
    if states == TERMINAL:
        return "any terminal"
    return ", ".join(_in_order(states))


def _states() -> str:
    rows = [
        [state, str(state.code), str(RANK[state]), _kind(state), _ways_out(state)]
        for state in STATES
    ]
    return "\n".join(
        [
            "## The states",
            "",
            "The pair (attempt, rank) of a job never decreases; a claim starts the next attempt.",
            "",
            *_table(("state", "code", "rank", "", "leads to"), rows),
        ]
    )


def _kind(state: State) -> str:
    if state in TERMINAL:
        return "terminal"
    return "owned" if state in OWNED else ""


def _ways_out(state: State) -> str:
    targets = {row.targets(state) for row in TABLE if state in row.sources} - {state}
    return ", ".join(_in_order(targets)) or NONE


def _columns() -> str:
    columns = _ruled_columns()
    rows = [[state, *(_verdict(column, state) for column in columns)] for state in STATES]
    others = [
        [rule.name, f"`{rule.sql}`"] for rule in RULES if not _rules_a_column(rule.name, columns)
    ]
    return "\n".join(
        [
            "## The columns of each state",
            "",
            "Both schemas enforce this by CHECKs that are generated from the same rules. ●: the",
            "column has a value. ○: it may have one. Empty: it has none.",
            "",
            *_table(("state", *(f"`{column}`" for column in columns)), rows),
            "",
            "These rules apply in every state (numbers are the codes of states):",
            "",
            *_table(("rule", "as SQL"), others),
        ]
    )


_SUFFIXES = ("_by_state", "_only", "_always")


def _ruled_columns() -> list[str]:
    """Return the columns whose presence depends on the state, in the order of the rules."""
    fields = set(Record.__struct_fields__)
    names = (rule.name.removesuffix(suffix) for rule in RULES for suffix in _SUFFIXES)
    found = dict.fromkeys(name for name in names if name in fields)
    # Attempt is a number and never absent: its rule restricts the value.
    return [name for name in found if name != "attempt"]


def _rules_a_column(rule: str, columns: Iterable[str]) -> bool:
    return any(rule == column + suffix for column in columns for suffix in _SUFFIXES)


def _verdict(column: str, state: State) -> str:
    """Return whether the rules allow, require or forbid a column in a state."""
    rules = [rule for rule in RULES if _rules_a_column(rule.name, [column])]
    record = _blank(state)
    given: Any = replace(record, **{column: 1})
    missing: Any = replace(record, **{column: None})
    if not all(rule.holds(given) for rule in rules):
        return ""
    return "○" if all(rule.holds(missing) for rule in rules) else "●"


def _blank(state: State) -> Job:
    return Record(id=JobId(UUID(int=0)), created_at=0, updated_at=0, state=state, rev=1)


def _vocabularies() -> str:
    rows = [[f"`{state}`", *(_cell(dialect, state) for dialect in _dialects())] for state in STATES]
    rows += [
        [
            f"retention `{retention}`",
            *(d.retention.get(retention, "(outcome)") for d in _dialects()),
        ]
        for retention in DIALECTS["D"].retention
    ]
    return "\n".join(
        [
            "## The five vocabularies",
            "",
            "A dialect is a view in the vocabulary of one of the documents that specify Holdfast.",
            "It never changes what is stored. †: the furthest state reached so far is shown.",
            "",
            *_table(("canonical", *DIALECTS), rows),
        ]
    )


def _dialects() -> Iterator[Dialect]:
    yield from DIALECTS.values()


def _cell(dialect: Dialect, state: State) -> str:
    word = dialect.states.get(state, "†")
    if state in dialect.errors:
        word += f", `{dialect.errors[state]}`"
    for ending in dialect.endings:
        if ending.state is state:
            error = f", `{ending.error}`" if ending.error else ""
            word += f"; {ending.what}: {ending.word}{error}"
    return word


def _events() -> str:
    kinds = [kind for kind in EventType if kind is not EventType.UNKNOWN]
    rows = [
        [_code(kind), str(kind.code), *(_names(dialect, kind) for dialect in _dialects())]
        for kind in kinds
    ]
    return "\n".join(
        [
            "## The events",
            "",
            "Every store uses the same events. The table lists the name in each dialect. –: the",
            "dialect omits the event, because it changes nothing that the dialect shows.",
            "",
            *_table(("event", "code", *DIALECTS), rows),
        ]
    )


def _names(dialect: Dialect, kind: EventType) -> str:
    return ", ".join(event_names(dialect, kind)) or NONE


def event_names(dialect: Dialect, kind: EventType) -> list[str]:
    """Return every name that a dialect may give to an event, in the order of the edges."""
    if kind in dialect.names:
        return [dialect.names[kind]]
    if kind in _RETENTION_EVENTS:
        return [name for name in dialect.retention.values() if kind == f"job_{name}"]
    found: dict[str, None] = {}
    for event, source, target in sorted(legal_events(), key=_edge_order):
        if event is kind:
            found |= dict.fromkeys(_shown(dialect, source, target))
    return list(found)


_RETENTION_EVENTS = (EventType.CLEANING, EventType.CLEANED)


def _edge_order(edge: tuple[EventType, State | None, State]) -> tuple[int, int, int]:
    event, source, target = edge
    return event.code, source.code if source else 0, target.code


def _shown(dialect: Dialect, source: State | None, target: State) -> Iterator[str]:
    """Yield the names under which a dialect shows one edge, if it shows it."""
    before = dialect.states.get(source) if source else None
    after = dialect.states.get(target)
    furthest_stays = dialect.forward and target in LIVE and source is not None and before is None
    if after is None or source is target or before == after or furthest_stays:
        return
    words = [after, *(ending.word for ending in dialect.endings if ending.state is target)]
    yield from (dialect.arrivals.get(word, word) for word in words)


def _dialect_notes() -> str:
    lines = ["## The rules of each dialect"]
    for dialect in _dialects():
        lines += ["", f"**{dialect.key}** (`{dialect.seed}`)", ""]
        lines += [f"- allows {_edges(dialect, dialect.edges)}"]
        if dialect.extra:
            lines += [f"- also shows {_edges(dialect, dialect.extra)}"]
        if dialect.forward:
            lines += [
                "- never shows an earlier state: without an owner, the furthest state is shown"
            ]
        lines += [
            f"- shows {', '.join(steps)} between {source or 'the submit'} and {target}"
            for (source, target), steps in dialect.implied.items()
        ]
        if dialect.counts_next:
            lines += ["- shows the attempt with the state; without an owner, the next attempt"]
        if dialect.operations:
            lines += [f"- has the operations {_words(dialect.operations)}"]
        lines += [
            f"- shows these fields of a job: {', '.join(f'`{name}`' for name in dialect.fields)}"
        ]
    return "\n".join(lines)


def _edges(dialect: Dialect, edges: Iterable[Edge]) -> str:
    """Format edges by source, in the order in which a job reaches them."""
    reached: list[str | None] = [None]
    for state in reached:
        found = {target for source, target in dialect.edges if source == state}
        reached += sorted(found.difference(reached))
    parts = []
    for state in reached:
        if targets := sorted((to for at, to in edges if at == state), key=reached.index):
            parts.append(f"{state or 'submit'} → {', '.join(targets)}")
    return "; ".join(parts)


def _words(operations: Mapping[Operation, str]) -> str:
    return ", ".join(f"`{word}` for {operation}" for operation, word in operations.items())


def _in_order(states: Iterable[State]) -> list[State]:
    return sorted(states, key=lambda state: state.code)


def _code(word: str) -> str:
    return f"`{word}`"


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    titles = list(head)
    body = ["| " + " | ".join(row) + " |" for row in rows]
    return [
        "| " + " | ".join(titles) + " |",
        "| " + " | ".join("---" for _ in titles) + " |",
        *body,
    ]
