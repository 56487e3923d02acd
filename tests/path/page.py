"""The list of what the path crosses: `path.txt`, a line per layer, from the surface down."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

Crossed = dict[str, dict[str, set[str]]]
"""Modules by engine and step."""

PAGE = Path(__file__).with_name("path.txt")
ENGINES = ("sqlite", "postgres")
_ROOT = Path(__file__).parents[2]
_HEAD = """\
The modules of src/holdfast that each step of a job's path crosses: those of which a profiler sees a
function run. One line per layer, from the surface down; +sqlite or +postgres where one engine alone
crosses a module. `python -m tests.path` writes this list, test_path.py compares it with what runs.
"""


def record_apart(url: str) -> dict[str, set[str]]:
    """Record the path in a process of its own, in which no other code was imported before."""
    command = [sys.executable, "-m", "tests.path", url]
    done = subprocess.run(command, cwd=_ROOT, check=True, capture_output=True, timeout=300)
    return {step: set(modules) for step, modules in json.loads(done.stdout).items()}


def rendered(crossed: Crossed) -> str:
    """Write the list."""
    blocks = [_HEAD]
    for step in crossed[ENGINES[0]]:
        counts = ", ".join(f"{len(crossed[engine][step])} on {engine}" for engine in ENGINES)
        blocks.append(f"{step}: {counts}\n{_lines(step, crossed)}")
    return "\n".join(blocks)


def _lines(step: str, crossed: Crossed) -> str:
    rooms: dict[str, list[str]] = {}
    for module in sorted(set.union(*(crossed[engine][step] for engine in ENGINES))):
        room, _, name = module.rpartition(".")
        own = [engine for engine in ENGINES if module in crossed[engine][step]]
        # Below an engine's own folder it goes without saying.
        shared = len(own) == len(ENGINES) or own[0] in room
        rooms.setdefault(room, []).append(name if shared else f"{name}+{own[0]}")
    order = _layers()
    return "".join(
        f"    {room:<18} {' '.join(names)}\n"
        for room, names in sorted(rooms.items(), key=lambda item: (_place(item, order), item[0]))
    )


def _place(room: tuple[str, list[str]], order: list[str]) -> int:
    name, modules = room
    return order.index(name.partition(".")[0] or modules[0].partition("+")[0])


def _layers() -> list[str]:
    """Return the layers as import-linter checks them, highest first."""
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text("utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    [layers] = [one["layers"] for one in contracts if one["id"] == "layers"]
    return [name for line in layers for name in re.findall(r"[a-z_]+", line)]


def read_page(text: str) -> Crossed:
    """Read a list that was written."""
    crossed: Crossed = {engine: {} for engine in ENGINES}
    step = ""
    for line in text.removeprefix(_HEAD).splitlines():
        if line and not line.startswith(" "):
            step = line.rpartition(":")[0]
            for engine in ENGINES:
                crossed[engine][step] = set()
        elif line:
            room, names = line[4:22].strip(), line[23:].split()
            for name in names:
                module, _, only = name.partition("+")
                for engine in [only] if only else _engines_of(room):
                    crossed[engine][step].add(f"{room}.{module}" if room else module)
    return crossed


def _engines_of(room: str) -> tuple[str, ...]:
    return tuple(engine for engine in ENGINES if engine in room) or ENGINES
