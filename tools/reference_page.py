"""docs/reference.md: Context, JobHandle and the errors, written from their docstrings."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

from holdfast import errors
from holdfast.context import Cancelled, Context, JobFacts, SyncCalls, Token
from holdfast.durable.children import ChildHandle
from holdfast.errors import HoldfastError
from holdfast.http.problems import VERDICTS
from holdfast.jobs import JobHandle
from holdfast.pending import PendingHandle

INTERNAL = {
    Context: {
        "ask",
        "durable",
        "facts",
        "finish",
        "goes_on_elsewhere",
        "is_durable",
        "keep_line",
        "rest",
        "restore",
        "spawning",
    },
    Cancelled: {"set"},
    ChildHandle: {"read"},
}
"""What the runners of handlers use of these classes, and no handler does."""
SECTIONS: tuple[tuple[str, str, type], ...] = (
    ("Context", "What a handler is given as `ctx`, its first parameter.", Context),
    ("ctx.job", "A `JobFacts`.", JobFacts),
    ("ctx.token", "A `Token`.", Token),
    ("ctx.cancelled", "A `Cancelled`.", Cancelled),
    ("ctx.sync", "A `SyncCalls`.", SyncCalls),
    ("ChildHandle", "What `ctx.spawn` returns.", ChildHandle),
    ("JobHandle", "What `task.submit`, `app.get` and `app.jobs` return.", JobHandle),
    ("PendingHandle", "What `task.submit_in` returns, before its commit.", PendingHandle),
)


def reference_page() -> str:
    """Write the whole page."""
    parts = [
        "# Reference",
        "Generated from the docstrings by `make docs`: every member of what a handler and a "
        "submitter hold, and every error.",
    ]
    for title, what, kind in SECTIONS:
        parts += [f"## {title}", _about(what, kind), *_members(kind)]
    parts += ["## Errors", _errors_intro(), _errors_table()]
    return "\n\n".join(parts) + "\n"


def _about(what: str, kind: type) -> str:
    return f"{what} {_doc(kind)}"


def _members(kind: type) -> Iterator[str]:
    lines = [
        f"- `{head}`" + (f"  \n  {text}" if text else "") for head, text in sorted(_described(kind))
    ]
    if lines:
        yield "\n".join(lines)


def _described(kind: type) -> Iterator[tuple[str, str]]:
    hidden = INTERNAL.get(kind, set())
    yield from _fields(kind)
    for name, member in vars(kind).items():
        if name.startswith("_") or name in hidden:
            continue
        if isinstance(member, property):
            yield name, _doc(member)
        elif inspect.isfunction(member):
            yield _signature(name, member), _doc(member)


def _fields(kind: type) -> Iterator[tuple[str, str]]:
    """Find annotated fields, and the text below each of them, if there is one."""
    [made] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(made, ast.ClassDef)
    for line, below in zip(made.body, [*made.body[1:], None], strict=True):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            told = below.value if isinstance(below, ast.Expr) else None
            text = told.value if isinstance(told, ast.Constant) else ""
            if not line.target.id.startswith("_"):
                head = f"{line.target.id}: {ast.unparse(line.annotation)}"
                yield head, " ".join(str(text).split())


def _signature(name: str, function: Any) -> str:
    said = inspect.signature(function)
    shown = said.replace(parameters=[*said.parameters.values()][1:])
    text = str(shown).replace("'", "").replace(" -> None", "")
    lead = "await " if inspect.iscoroutinefunction(function) else ""
    return f"{lead}{name}{text}"


def _doc(thing: Any) -> str:
    text = inspect.getdoc(thing) or ""
    return " ".join(text.split())


def _errors_intro() -> str:
    return (
        "All are classes of `holdfast.errors` below `HoldfastError`. `error.code` is stable: the "
        "class's own, or a finer one that the error was raised with. `error.job_id` and "
        "`error.field` name the job and the field of the input, where there is one. HTTP is the "
        "status that a server answers with."
    )


def _errors_table() -> str:
    rows = [
        f"| {'&nbsp;' * 4 * depth}`{kind.__name__}` "
        f"| `{kind.code}` | {_status(kind)} | {_cell(kind)} |"
        for depth, kind in _tree(HoldfastError, 0)
    ]
    return "\n".join(["| error | code | HTTP | |", "| --- | --- | --- | --- |", *rows])


def _tree(kind: type[HoldfastError], depth: int) -> Iterator[tuple[int, type[HoldfastError]]]:
    yield depth, kind
    for child in kind.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from _tree(child, depth + 1)


def _status(kind: type[HoldfastError]) -> str:
    status = next(verdict.status for known, verdict in VERDICTS if issubclass(kind, known))
    return "" if status == 400 else str(status)


def _cell(kind: type) -> str:
    return _doc(kind).replace("|", "\\|")
