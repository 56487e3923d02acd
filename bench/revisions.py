"""Holdfast as it was at another revision: a contestant beside today's, before and after in one run.

`holdfast@REVISION` is whatever git knows by that name, in a tree and an environment of its own
under `out/bench`. Its own programs drive it, and its own `holdfast verify` judges it: a revision
owes nothing to the internals of another. The packages are those that today's environment has.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable
from importlib.metadata import distributions
from pathlib import Path

from msgspec.structs import replace

from bench.contestants import AT, DIRECTORY, Contestant, own
from bench.peers.environments import InstallError, make_environment, print_line
from bench.protocol import ROOT

EXTRAS = "postgres,server"
STAMP = "installed"


def install(
    words: Iterable[str], report: Callable[[str], None], directory: Path = DIRECTORY / "revisions"
) -> tuple[list[Contestant], dict[str, str]]:
    """Install every revision that is asked for; with them, who is missing and why."""
    found: dict[str, Contestant] = {}
    missing: dict[str, str] = {}
    for word in words:
        name, _, rest = word.partition(AT)
        # What comes after a space names the engine, and is for the one who chooses.
        revision = rest.partition(" ")[0]
        if not revision:
            continue
        try:
            found |= {one.name: one for one in _contestants(name, revision, directory)}
        except InstallError as error:
            missing[word] = f"could not be installed: {error}"
            report(f"{word} {missing[word]}")
    return list(found.values()), missing


def _contestants(name: str, revision: str, directory: Path) -> list[Contestant]:
    commit = _commit(revision)
    tree = directory / commit / "tree"
    python = _prepared(commit, tree)
    return [_at(one, revision, commit, tree, python) for one in own() if one.name.startswith(name)]


def _prepared(commit: str, tree: Path) -> Path:
    """Write the tree and make its environment; an interrupted attempt is started again."""
    place = tree.parent
    python = place / "venv" / "bin" / "python"
    stamp = place / STAMP
    if stamp.exists():
        return python
    print_line(f"installing {commit[:12]} of Holdfast")
    tree.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["tar", "--extract", "--directory", tree], input=_git("archive", commit), check=True
    )
    limits = place / "limits.txt"
    limits.write_text("".join(f"{name}=={pin}\n" for name, pin in _todays_packages().items()))
    make_environment(place / "venv", [f"{tree}[{EXTRAS}]"], limits)
    stamp.touch()
    return python


def _at(one: Contestant, revision: str, commit: str, tree: Path, python: Path) -> Contestant:
    first, *rest = one.name.split(" ")
    return replace(
        one,
        name=" ".join([f"{first}{AT}{revision}", *rest]),
        argv=(str(python), *one.argv[1:]),
        directory=tree,
        settings=f"commit {commit[:12]}",
    )


def _commit(revision: str) -> str:
    return _git("rev-parse", "--verify", f"{revision}^{{commit}}").decode().strip()


def _git(*words: str) -> bytes:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=False)
    if done.returncode != 0:
        raise InstallError(f"`git {' '.join(words)}` failed: {done.stderr.decode().strip()}")
    return done.stdout


def _todays_packages() -> dict[str, str]:
    """List what this environment has: else before and after would differ in their packages, too."""
    return {
        one.metadata["Name"]: one.version
        for one in distributions()
        if one.metadata["Name"] != "holdfast"
    }
