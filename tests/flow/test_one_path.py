"""Every job is built in one place, every sweep and every service is one loop.

A second builder forgets a term that the first one adds, a second loop a conflict that the first one
handles. So only these modules build a submission, commit changes, or wait between two passes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast

SOURCE = Path(holdfast.__file__).parent
EXCEPTED = ("testing/", "stores/")
BUILDERS = {"flow/submit.py", "lifecycle/linked.py", "lifecycle/submit.py"}
"""`lifecycle.linked` copies a job that exists, `lifecycle.submit` makes what plain jobs share."""
COMMITTERS = {
    "flow/command.py",
    "flow/batch.py",
    "worker/committer.py",
    "worker/lease_keeper.py",
    "worker_protocol/apply_reports.py",
}
"""One job, many jobs; and owners, who send what they decided."""
LOOPS = {"services/loop.py", "flow/upload.py"}
"""A finalize shows that it lives while it reads, for the time of one request: no service."""
LOOP_ROOMS = ("services/", "flow/", "maintenance/")


def builds(tree: ast.AST) -> Iterator[ast.Call]:
    """Return where a submission is built."""
    return (call for call, name, _ in _calls(tree) if name == "Submission")


def commits(tree: ast.AST) -> Iterator[ast.Call]:
    """Return where changes are committed to a store."""
    return (
        call
        for call, name, on in _calls(tree)
        if name == "commit" and on.endswith(("store", "jobs"))
    )


def waits(tree: ast.AST) -> Iterator[ast.Call]:
    """Return where a loop of its own would wait."""
    return (call for call, name, _ in _calls(tree) if name in {"sleep", "wait_for"})


def _calls(tree: ast.AST) -> Iterator[tuple[ast.Call, str, str]]:
    """Return each call with the name that is called, and on what."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)):
                yield node, name, ""
            case ast.Call(func=ast.Attribute(value=value, attr=name)):
                yield node, name, ast.unparse(value)
            case _:
                pass


def modules() -> dict[str, ast.AST]:
    found = {path.relative_to(SOURCE).as_posix(): path for path in sorted(SOURCE.rglob("*.py"))}
    return {
        name: ast.parse(path.read_text("utf-8"))
        for name, path in found.items()
        if not name.startswith(EXCEPTED)
    }


def test_only_flow_submit_builds_jobs() -> None:
    assert {name for name, tree in modules().items() if any(builds(tree))} == BUILDERS


def test_only_the_command_and_the_batch_commit_what_others_decide() -> None:
    assert {name for name, tree in modules().items() if any(commits(tree))} == COMMITTERS


def test_services_share_one_loop() -> None:
    waiting = {name for name, tree in modules().items() if any(waits(tree))}

    assert {name for name in waiting if name.startswith(LOOP_ROOMS)} == LOOPS


@pytest.mark.parametrize(
    ("find", "line"),
    [
        (builds, "job = Submission(id=id, task='t')"),
        (builds, "job = submission.Submission(id=id, task='t')"),
        (commits, "await store.commit(changes)"),
        (commits, "await self._store.commit(changes)"),
        (waits, "await asyncio.sleep(1)"),
        (waits, "await asyncio.wait_for(stopping.wait(), 1)"),
    ],
)
def test_a_second_place_is_found(find: object, line: str) -> None:
    assert callable(find)
    assert any(find(ast.parse(line)))
