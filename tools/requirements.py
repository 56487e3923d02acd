"""Which requirement is proven by which test: `make requirements`.

The ids are read from docs/requirements.md; the proofs are the `@pytest.mark.req("B21")` marks in
the tests and in the public contract suite, found by parsing, so nothing is imported or run.
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).resolve().parents[1]
LIST = "docs/requirements.md"
SEARCHED = ("tests", "src/holdfast/testing")
# How many requirements each seed has. A lost line in the list must not pass as progress.
EXPECTED = {"A": 19, "B": 32, "C": 16, "D": 18, "E": 8}

LINE_OF_LIST = re.compile(r"^- ([A-E][1-9][0-9]*) (.+)$", re.MULTILINE)


class ListError(Exception):
    """The list of requirements is not the one that the tests were written for."""


@dataclass(frozen=True, kw_only=True)
class Proof:
    """One mark: the id it names, and the test (or class, or module) that carries it."""

    id: str
    test: str


@dataclass(kw_only=True)
class Findings:
    """What one pass over the tests found."""

    proofs: list[Proof] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)


def read_list(text: str) -> dict[str, str]:
    """The requirements by id, in the order of the list; refuses a list with gaps or doubles."""
    found = LINE_OF_LIST.findall(text)
    ids = [id_ for id_, _ in found]
    expected = [f"{seed}{n}" for seed, count in EXPECTED.items() for n in range(1, count + 1)]
    if ids != expected:
        wrong = sorted(set(ids) ^ set(expected)) or [i for i in ids if ids.count(i) > 1] or ids
        raise ListError(
            f"{LIST}: expected {len(expected)} ids in order; look at {', '.join(wrong)}"
        )
    return dict(found)


def find_proofs(root: Path, known: set[str]) -> Findings:
    """Every mark below the searched directories; unknown ids and idle marks are mistakes."""
    findings = Findings()
    for path in _python_files(root):
        file = path.relative_to(root).as_posix()
        _MarkFinder(file, known, findings).visit(ast.parse(path.read_text("utf-8"), file))
    return findings


def _python_files(root: Path) -> Iterator[Path]:
    for directory in SEARCHED:
        yield from sorted((root / directory).rglob("*.py"))


class _MarkFinder(ast.NodeVisitor):
    """Collects the marks of one file: on functions, on classes, and in `pytestmark`."""

    def __init__(self, file: str, known: set[str], findings: Findings) -> None:
        self._file = file
        self._known = known
        self._findings = findings
        self._scope: list[str] = []

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._visit_function(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._visit_function(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._scope.append(node.name)
        self._collect(node.decorator_list)
        for statement in node.body:
            self.visit(statement)
        self._scope.pop()

    def visit_Assign(self, node: ast.Assign) -> None:
        if any(
            isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets
        ):
            self._collect([node.value])

    def _visit_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        # Not visited further: a function inside a test is not a test.
        self._scope.append(node.name)
        marks = self._collect(node.decorator_list)
        if marks and not node.name.startswith("test_"):
            self._mistake(marks[0], f"a mark on {node.name} proves nothing: pytest does not run it")
        self._scope.pop()

    def _collect(self, expressions: Sequence[ast.expr]) -> list[ast.Call]:
        # Walked, because a mark may sit inside pytest.param(..., marks=...) or a list.
        marks = [node for outer in expressions for node in ast.walk(outer) if _is_mark(node)]
        for mark in marks:
            self._record(mark)
        return marks

    def _record(self, mark: ast.Call) -> None:
        if not mark.args or mark.keywords:
            self._mistake(mark, "a req mark takes one or more ids")
        for argument in mark.args:
            match argument:
                case ast.Constant(value=str(id_)) if id_ in self._known:
                    test = "::".join([self._file, *self._scope])
                    self._findings.proofs.append(Proof(id=id_, test=test))
                case ast.Constant(value=value):
                    self._mistake(argument, f"unknown requirement {value!r}")
                case _:
                    self._mistake(argument, "a requirement must be named by a literal string")

    def _mistake(self, node: ast.expr, what: str) -> None:
        self._findings.mistakes.append(f"{self._file}:{node.lineno}: {what}")


def _is_mark(node: ast.AST) -> TypeGuard[ast.Call]:
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Attribute(attr="mark"), attr="req")):
            return True
        case ast.Call(func=ast.Attribute(value=ast.Name(id="mark"), attr="req")):
            return True
        case _:
            return False


def report(requirements: dict[str, str], proofs: Sequence[Proof]) -> list[str]:
    """The lines to print: the proven ids with their tests, the open ones, and the count."""
    tests: dict[str, list[str]] = {id_: [] for id_ in requirements}
    for proof in proofs:
        if proof.test not in tests[proof.id]:
            tests[proof.id].append(proof.test)
    proven = [id_ for id_ in requirements if tests[id_]]
    still_open = [id_ for id_ in requirements if not tests[id_]]

    lines = ["proven"]
    for id_ in proven:
        first, *others = tests[id_]
        lines += [f"  {id_:<4} {first}", *(f"       {other}" for other in others)]
    lines += ["open", *(f"  {id_:<4} {requirements[id_]}" for id_ in still_open)]
    lines.append(f"proven {len(proven)} of {len(requirements)}")
    return lines


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Print the report; 1 when a mark names no requirement, or the list itself is broken."""
    parser = argparse.ArgumentParser(description="Which requirement is proven by which test.")
    parser.add_argument("--check", action="store_true", help="only look for unknown ids")
    only_check = parser.parse_args(arguments).check
    try:
        requirements = read_list((root / LIST).read_text("utf-8"))
    except ListError as error:
        print(error, file=sys.stderr)
        return 1
    findings = find_proofs(root, set(requirements))
    for mistake in findings.mistakes:
        print(mistake, file=sys.stderr)
    if not only_check:
        print("\n".join(report(requirements, findings.proofs)))
    return 1 if findings.mistakes else 0


if __name__ == "__main__":
    sys.exit(main())
