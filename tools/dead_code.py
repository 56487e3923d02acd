"""Finds code that nothing uses, by vulture, and leaves out what it cannot know.

A field of a record or a member of an enum is read through its class (a store maps columns, a
codec maps keys), so those are not reported; functions, classes, methods and constants are.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from vulture.config import make_config
from vulture.core import Vulture

CERTAIN = 100
JUDGED_BY_NAME = ("class", "function", "method", "property", "import", "unreachable_code")


def unused(paths: Sequence[str]) -> Iterator[str]:
    """One line per piece of code that nothing uses."""
    config = make_config(["vulture", *paths])
    finder = Vulture(
        ignore_names=config["ignore_names"], ignore_decorators=config["ignore_decorators"]
    )
    finder.scavenge(paths)
    for item in finder.get_unused_code(min_confidence=config["min_confidence"]):
        constant = item.typ == "variable" and _is_at_top_level(item.filename, item.first_lineno)
        if item.typ in JUDGED_BY_NAME or item.confidence == CERTAIN or constant:
            file = item.filename.relative_to(Path.cwd())
            yield f"{file}:{item.first_lineno}: {item.message}"


def _is_at_top_level(file: Path, line: int) -> bool:
    return not file.read_text("utf-8").splitlines()[line - 1].startswith((" ", "\t"))


def main(paths: Sequence[str]) -> int:
    """Print what is unused; 1 when there is any."""
    found = list(unused(paths))
    for line in found:
        print(line)
    if found:
        print("Remove it, or name it in tools/vulture_whitelist.py with the reason.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
