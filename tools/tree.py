"""The shape of the tree: `make check` compares it with these rules and with `tools/ceilings.toml`.

A ceiling only goes down: `python -m tools.tree --lower` writes what is reached. To raise one, edit
the file, so that the growth is seen in review.
"""

import argparse
import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

from tools.prose import words_by_room

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "src/holdfast"
CEILINGS = "tools/ceilings.toml"
TOP_LEVEL_MODULES = 7
NOUNS = frozenset({"string", "testing", "tracing", "wiring"})
"""Words that end like a gerund and are the field's own nouns."""


def rooms(package: Path) -> dict[str, list[Path]]:
    """Return the modules of each folder directly below the package; "." is the package itself."""
    found: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).parts
        found[parts[0] if len(parts) > 1 else "."].append(path)
    return found


def top_level_problems(package: Path) -> Iterator[str]:
    """Refuse more modules beside the folders than the layout names."""
    modules = sorted(path.name for path in package.glob("*.py"))
    if len(modules) > TOP_LEVEL_MODULES:
        yield f"{len(modules)} modules at the top level, at most {TOP_LEVEL_MODULES}: {modules}"


def gerund_problems(package: Path) -> Iterator[str]:
    """Refuse modules and folders that are named by a gerund: a module is a thing or a verb."""
    for path in sorted([*package.rglob("*.py"), *(p.parent for p in package.rglob("__init__.py"))]):
        last_word = path.stem.rpartition("_")[2]
        if last_word.endswith("ing") and last_word not in NOUNS:
            yield f"{path.relative_to(package)}: a module is a thing or a verb, not a gerund"


def class_problems(package: Path) -> Iterator[str]:
    """Refuse a class name that is defined in two places."""
    homes: dict[str, list[str]] = defaultdict(list)
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(f"{path.relative_to(package)}:{node.lineno}")
    for name, places in sorted(homes.items()):
        if len(places) > 1:
            yield f"class {name} is defined {len(places)} times: {', '.join(places)}"


def lines_by_room(package: Path) -> dict[str, int]:
    """Count the lines of each folder's modules."""
    return {
        room: sum(len(path.read_text("utf-8").splitlines()) for path in paths)
        for room, paths in rooms(package).items()
    }


def measured(root: Path) -> dict[str, dict[str, int]]:
    """Return what the ceilings hold down: lines and flagged words by folder, repeated classes."""
    package = root / PACKAGE
    repeated = len(list(class_problems(package)))
    return {
        "lines": lines_by_room(package),
        "words": {room: len(found) for room, found in words_by_room(root).items()},
        "classes": {"repeated": repeated},
    }


def ceiling_problems(
    ceilings: Mapping[str, Mapping[str, int]], counts: Mapping[str, Mapping[str, int]]
) -> Iterator[str]:
    """Refuse what stands above its ceiling; what has none may not be there at all."""
    for what, by_room in counts.items():
        for room, count in by_room.items():
            most = ceilings.get(what, {}).get(room, 0)
            if count > most:
                yield f"{what} of {room}: {count}, at most {most} ({CEILINGS})"


def problems(root: Path) -> Iterator[str]:
    """Find everything that breaks a rule."""
    package = root / PACKAGE
    yield from top_level_problems(package)
    yield from gerund_problems(package)
    yield from ceiling_problems(read_ceilings(root), measured(root))


def read_ceilings(root: Path) -> dict[str, dict[str, int]]:
    """Read the ceilings."""
    with (root / CEILINGS).open("rb") as file:
        return tomllib.load(file)


def lowered(
    ceilings: Mapping[str, Mapping[str, int]], counts: Mapping[str, Mapping[str, int]]
) -> str:
    """Return the file's text with every ceiling at what is reached, and none raised."""
    lines = ["# The most that each folder of src/holdfast may have: see tools/tree.py. Never raise"]
    lines.append("# one without giving the reason in the commit.")
    for what, by_room in counts.items():
        lines += ["", f"[{what}]"]
        for room, count in sorted(by_room.items()):
            most = min(ceilings.get(what, {}).get(room, count), count)
            lines.append(f"{_key(room)} = {most}")
    return "\n".join(lines) + "\n"


def _key(room: str) -> str:
    return room if re.fullmatch(r"[a-z_]+", room) else f'"{room}"'


def main() -> int:
    """Show what breaks a rule, or lower the ceilings; 1 when a rule is broken."""
    parser = argparse.ArgumentParser(description="Compare the tree with its rules.")
    parser.add_argument("--lower", action="store_true", help="write what is reached as ceilings")
    parser.add_argument("--words", metavar="ROOM", help="list the flagged words of one folder")
    parser.add_argument("--classes", action="store_true", help="list repeated class names")
    options = parser.parse_args()
    if options.words is not None:
        print("\n".join(words_by_room(ROOT).get(options.words, ())))
    elif options.classes:
        print("\n".join(class_problems(ROOT / PACKAGE)))
    elif options.lower:
        text = lowered(read_ceilings(ROOT), measured(ROOT))
        (ROOT / CEILINGS).write_text(text, "utf-8")
    else:
        found = list(problems(ROOT))
        print("\n".join(found) or "the tree keeps to its rules")
        return 1 if found else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
