"""docs/reference.md: Context, JobHandle and the errors, generated from their docstrings."""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

from holdfast import errors
from holdfast.errors import HoldfastError
from holdfast.operations.problems import PROBLEM_KINDS
from holdfast.tasks.cancellation import Cancelled
from holdfast.tasks.context import Context, FencingToken, JobFacts, SyncCalls
from holdfast.tasks.durable.children import ChildHandle
from holdfast.tasks.handles import JobHandle, PendingHandle

INTERNAL = {
    Context: {
        "ask",
        "conclude",
        "durable",
        "facts",
        "finish",
        "goes_on_elsewhere",
        "keep_line",
        "restore",
        "spawning",
    },
    Cancelled: {"set"},
    ChildHandle: {"read"},
}
"""Members that only the runners of handlers use."""
SECTIONS: tuple[tuple[str, str, type], ...] = (
    ("Context", "The first parameter of a handler, `ctx`.", Context),
    ("ctx.job", "Class `JobFacts`.", JobFacts),
    ("ctx.token", "Class `FencingToken`.", FencingToken),
    ("ctx.cancelled", "Class `Cancelled`.", Cancelled),
    ("ctx.sync", "Class `SyncCalls`.", SyncCalls),
    ("ChildHandle", "`ctx.spawn` returns it.", ChildHandle),
    ("JobHandle", "`task.submit`, `app.get` and `app.jobs` return it.", JobHandle),
    ("PendingHandle", "`task.submit_in` returns it.", PendingHandle),
)


def reference_page() -> str:
    """Write the whole page."""
    parts = [
        "# Reference",
        "This page lists the public members of the objects that handlers and submitters use, and "
        "every error. `make docs` generates it from the docstrings.",
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
    """Yield annotated fields with the text below each, if there is one."""
    [made] = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(made, ast.ClassDef)
    for line, below in zip(made.body, [*made.body[1:], None], strict=True):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            doc = below.value if isinstance(below, ast.Expr) else None
            text = doc.value if isinstance(doc, ast.Constant) else ""
            if not line.target.id.startswith("_"):
                head = f"{line.target.id}: {ast.unparse(line.annotation)}"
                yield head, " ".join(str(text).split())


def _signature(name: str, function: Any) -> str:
    signature = inspect.signature(function)
    shown = signature.replace(parameters=[*signature.parameters.values()][1:])
    text = str(shown).replace("'", "").replace(" -> None", "")
    lead = "await " if inspect.iscoroutinefunction(function) else ""
    return f"{lead}{name}{text}"


def _doc(thing: Any) -> str:
    text = inspect.getdoc(thing) or ""
    return " ".join(text.split())


def _errors_intro() -> str:
    return (
        "All errors are subclasses of `HoldfastError` in `holdfast.errors`. `error.code` is "
        "stable: the code of the class, or a more specific one that the error was raised with. "
        "`error.job_id` and `error.field` name the job and the field of the input, if there is "
        "one. HTTP is the status that a server returns."
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
    status = next(shown[0] for known, shown in PROBLEM_KINDS.items() if issubclass(kind, known))
    return "" if status == 400 else str(status)


def _cell(kind: type) -> str:
    return _doc(kind).replace("|", "\\|")
