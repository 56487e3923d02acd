"""`make lock`: pin everything that the image and CI install, with hashes. `--check` compares.

One file for each of them under requirements/, resolved for all Pythons that Holdfast supports. No
file names a registry: where packages come from is decided where they are installed.
"""

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LOCKS: dict[str, tuple[str, ...]] = {
    "image": ("client", "metrics", "postgres", "server"),
    "dev": ("dev",),
}
"""The extras that each lock file holds; `build` holds what builds the package."""
EDITABLE = ("editables>=0.5",)
"""What hatchling needs for an editable install, which pyproject.toml cannot name: it asks at the
time of the build, and a build without isolation asks nobody."""
PINNED = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[^\]]*\])?==([^\s;]+)(.*)$")
INPUTS = "# inputs: "


def main() -> int:
    """Write the lock files, or report what is wrong with them."""
    parser = argparse.ArgumentParser(prog="make lock", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare with pyproject.toml")
    parser.add_argument("--upgrade", action="store_true", help="take the newest of everything")
    arguments = parser.parse_args()
    if not arguments.check:
        write(upgrade=arguments.upgrade)
    problems = [problem for name in ("build", *LOCKS) for problem in faults(name)]
    for problem in problems:
        print(problem)
    if problems:
        print("run `make lock`, and commit what it writes")
    return 1 if problems else 0


def write(*, upgrade: bool) -> None:
    """Resolve and pin everything; what was pinned and still fits stays, unless upgraded."""
    more = ["--upgrade"] if upgrade else []
    with tempfile.TemporaryDirectory() as place:
        wanted = Path(place) / "build.in"
        wanted.write_text("\n".join(builders(project())))
        _compile("build", str(wanted), *more)
    for name, extras in LOCKS.items():
        # Both are installed by one command.
        limits = ("--constraint", str(lock("build"))) if name == "dev" else ()
        words = (word for extra in extras for word in ("--extra", extra))
        _compile(name, "pyproject.toml", *words, *limits, *more)


def _compile(name: str, *what: str) -> None:
    path = lock(name)
    path.parent.mkdir(exist_ok=True)
    command = [str(Path(sys.executable).parent / "uv"), "pip", "compile", "--quiet", *what]
    command += ["--universal", "--python-version", "3.11", "--generate-hashes"]
    command += ["--no-header", "--no-annotate", "--no-emit-index-url", "--output-file", str(path)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    text = f"# Written by `make lock`.\n{INPUTS}{inputs()}\n{path.read_text()}"
    path.write_text(text)


def faults(name: str) -> list[str]:
    """List where a lock file differs from what pyproject.toml asks for, or lacks a hash."""
    path = lock(name)
    where = path.relative_to(ROOT)
    if not path.exists():
        return [f"{where} is missing"]
    text = path.read_text()
    problems = []
    if f"{INPUTS}{inputs()}\n" not in text:
        problems.append(f"{where} was written for other dependencies than those of pyproject.toml")
    if "://" in text or "--index" in text or "--find-links" in text:
        problems.append(f"{where} names a place that packages come from")
    pins = {}
    for block in re.split(r"\n(?=\S)", text):
        found = PINNED.match(block.partition("\n")[0].rstrip("\\ "))
        if found is not None:
            pins[canonicalize_name(found[1])] = found[2]
            if "--hash=sha256:" not in block:
                problems.append(f"{where}: {found[1]} has no hash")
    for wanted in _direct(name):
        pinned = pins.get(canonicalize_name(wanted.name))
        if pinned is None or not wanted.specifier.contains(pinned, prereleases=True):
            problems.append(f"{where}: {wanted} is asked for, {pinned or 'nothing'} is pinned")
    return problems


def _direct(name: str) -> list[Requirement]:
    """List what pyproject.toml itself asks for."""
    tables = project()
    if name == "build":
        return [Requirement(text) for text in builders(tables)]
    optional = tables["project"]["optional-dependencies"]
    texts = list(tables["project"]["dependencies"])
    extras = list(LOCKS[name])
    for extra in extras:
        for text in optional[extra]:
            own = Requirement(text)
            if own.name == tables["project"]["name"]:
                extras += own.extras
            else:
                texts.append(text)
    return [Requirement(text) for text in texts]


def inputs() -> str:
    """Return a digest of all that pyproject.toml has about dependencies."""
    tables = project()
    dependencies = {
        "build": builders(tables),
        "dependencies": tables["project"]["dependencies"],
        "optional": tables["project"]["optional-dependencies"],
        "python": tables["project"]["requires-python"],
    }
    return hashlib.sha256(json.dumps(dependencies, sort_keys=True).encode()).hexdigest()


def builders(tables: dict[str, Any]) -> list[str]:
    """List what builds the package, as a wheel or in place."""
    return [*tables["build-system"]["requires"], *EDITABLE]


def lock(name: str) -> Path:
    """Name a lock file."""
    return ROOT / "requirements" / f"{name}.txt"


def project() -> dict[str, Any]:
    """Read pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


if __name__ == "__main__":
    sys.exit(main())
