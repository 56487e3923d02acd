"""`make check`: every check, one after the other; all of them run, and any failure fails the whole.

Only what reads the code is here. What runs it is `make test`.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("src", "tests", "bench", "tools", "examples")


@dataclass(frozen=True, kw_only=True)
class Step:
    """One check: its name, and the command that exits non-zero when it fails."""

    name: str
    command: tuple[str, ...]


def steps() -> Iterator[Step]:
    """The checks, the fast ones first."""
    # mypy refuses a directory without Python in it.
    sources = tuple(name for name in SOURCES if any((ROOT / name).rglob("*.py")))
    yield Step(name="format", command=_tool("ruff", "format", "--check", *sources))
    yield Step(name="lint", command=_tool("ruff", "check", *sources))
    yield Step(name="requirements", command=_module("tools.requirements", "--check"))
    if (ROOT / "tools/generate.py").exists():
        yield Step(name="generated files", command=_module("tools.generate", "--check"))
    yield Step(name="lock files", command=_module("tools.lock", "--check"))
    yield Step(name="layers", command=_tool("lint-imports", "--no-logo"))
    yield Step(name="tree", command=_module("tools.tree"))
    yield Step(name="dead code", command=_module("tools.dead_code", *sources))
    yield Step(name="types", command=_tool("mypy", *sources))


def _tool(name: str, *arguments: str) -> tuple[str, ...]:
    return (str(Path(sys.executable).parent / name), *arguments)


def _module(name: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-m", name, *arguments)


def passes(step: Step) -> bool:
    """Run one check, its output on ours."""
    print(f"== {step.name}", flush=True)
    start = time.monotonic()
    code = subprocess.run(step.command, cwd=ROOT, check=False).returncode
    verdict = "ok" if code == 0 else f"FAILED (exit {code})"
    print(f"== {step.name}: {verdict} ({time.monotonic() - start:.1f} s)\n", flush=True)
    return code == 0


def main() -> int:
    """Run all checks; 1 when any failed."""
    failed = [step.name for step in list(steps()) if not passes(step)]
    print(f"failed: {', '.join(failed)}" if failed else "all checks passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
