"""States and events have names in the law alone: all other code asks it.

A copy of a question, such as `job.state is State.RUNNING and …`, drifts from the law unseen. So no
module outside `lifecycle` names a state or an event, or compares a role or an operation. Excepted
are the generator of the schema's SQL, which renders the law, and the support for tests, which
brings jobs into states by name.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

import holdfast
from holdfast.lifecycle.states import EventType, Operation, Role, State

Vocabulary: TypeAlias = type[State | EventType | Role | Operation]

SOURCE = Path(holdfast.__file__).parent
EXCEPTED = ("lifecycle/", "testing/", "stores/schema_sql.py", "stores/row_checks.py")
VOCABULARIES: dict[str, Vocabulary] = {
    kind.__name__: kind for kind in (State, EventType, Role, Operation)
}
EVENTS = frozenset(EventType) - {EventType.UNKNOWN}
STATES = frozenset(State) - {State.UNKNOWN}
CODES = "errors.py"
"""Where some codes of errors are named like the events that they report."""


def namings(path: str, text: str) -> list[str]:
    """Return where a module names a word of the law."""
    tree = ast.parse(text)
    known = VOCABULARIES | dict(_aliases(tree))
    found = [
        f"{path}:{part.lineno}: {ast.unparse(part)}"
        for node in ast.walk(tree)
        for part in _words(node, known, is_codes=path == CODES)
    ]
    return sorted(set(found))


def _aliases(tree: ast.AST) -> Iterator[tuple[str, Vocabulary]]:
    """Return a module's other names for the vocabularies, such as `_S, _E = State, EventType`."""
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(names=names):
                pairs = [(one.asname or "", one.name) for one in names]
            case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                pairs = list(zip(map(_name, targets), map(_name, values), strict=True))
            case ast.Assign(targets=targets, value=value):
                pairs = [(_name(target), _name(value)) for target in targets]
            case _:
                continue
        yield from ((alias, VOCABULARIES[one]) for alias, one in pairs if one in VOCABULARIES)


def _words(
    node: ast.AST, known: dict[str, Vocabulary], *, is_codes: bool
) -> Iterator[ast.Attribute | ast.Constant]:
    """Return the words of the law that a node names, in a way that it may not."""
    match node:
        case ast.Attribute() if _is_member(node, known, State, EventType):
            yield node
        case ast.Constant(value=value) if value in EVENTS and not is_codes:
            yield node
        case ast.Compare(left=left, comparators=others):
            for part in (part for one in (left, *others) for part in ast.walk(one)):
                yield from _compared(part, known)
        case ast.MatchValue(value=value):
            yield from _compared(value, known)
        case _:
            pass


def _compared(
    node: ast.AST, known: dict[str, Vocabulary]
) -> Iterator[ast.Attribute | ast.Constant]:
    match node:
        case ast.Constant(value=value) if value in STATES:
            yield node
        case ast.Attribute() if _is_member(node, known, Role, Operation):
            yield node
        case _:
            pass


def _is_member(node: ast.Attribute, known: dict[str, Vocabulary], *kinds: Vocabulary) -> bool:
    kind = known.get(_name(node.value))
    return kind in kinds and node.attr in kind.__members__


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def modules() -> Iterator[tuple[str, str]]:
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if not name.startswith(EXCEPTED):
            yield name, path.read_text("utf-8")


def test_no_module_outside_the_law_names_a_state_or_an_event() -> None:
    found = [one for name, text in modules() for one in namings(name, text)]

    assert not found, "ask lifecycle instead:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "done = job.state is State.SUCCEEDED",
        "done = job.state is states.State.SUCCEEDED",
        "from holdfast.lifecycle.states import State as Where\ndone = Where.SUCCEEDED",
        "_E = EventType\nENDS = (_E.FAILED, _E.SUCCEEDED)",
        "_S, _O = State, Operation\nsql = _S.CLAIMED.code",
        "done = event.type == 'job_succeeded'",
        "link = links.get('job_compensated')",
        "done = job.state == 'succeeded'",
        "done = job.state in ('failed', 'timed_out')",
        "match state:\n    case 'failed':\n        pass",
        "match state:\n    case State.FAILED:\n        pass",
        "mine = actor.role is Role.OWNER",
        "turns = operation in (Operation.RETRY, Operation.FAIL)",
    ],
)
def test_a_word_of_the_law_is_found(line: str) -> None:
    assert namings("flow/somewhere.py", line)


@pytest.mark.parametrize(
    "line",
    [
        "done = job.succeeded",
        "done = state in TERMINAL",
        "actor = Actor(Role.CONTROL, name)",
        "counts = {'failed': failures}",
        "state = State.named(word)",
    ],
)
def test_a_question_to_the_law_is_not_found(line: str) -> None:
    assert namings("flow/somewhere.py", line) == []
