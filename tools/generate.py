"""Files that are made from the code: `make docs` writes them, `make check` compares them.

A generator gives whole files by their path. To add one, write a function and put it into
`GENERATORS`; it must say the same every time, or `--check` fails for no reason.
"""

import argparse
import difflib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from holdfast.stores.text import schema
from tools.lifecycle_page import lifecycle_page
from tools.reference_page import reference_page

ROOT = Path(__file__).resolve().parents[1]
SHOWN_LINES = 40

Generator: TypeAlias = Callable[[], Mapping[str, str]]
"""Gives the text of each file it makes, by path below the root."""


def lifecycle_docs() -> dict[str, str]:
    """The page about the law."""
    return {"docs/lifecycle.md": lifecycle_page()}


def reference_docs() -> dict[str, str]:
    """The page about what handlers and submitters hold, and about errors."""
    return {"docs/reference.md": reference_page()}


def schemas() -> dict[str, str]:
    """The schema of each engine as the law now wants it; a test compares it with the migrations."""
    return {
        f"src/holdfast/stores/{engine}/schema.sql": _NOTE + schema(f"holdfast.stores.{engine}")
        for engine in ("postgres", "sqlite")
    }


_NOTE = """\
-- Generated from schema.in.sql and the law by `make docs`. What databases have comes from the
-- migrations: after a change here, write a new one that leads to it.

"""

GENERATORS: tuple[Generator, ...] = (lifecycle_docs, reference_docs, schemas)


def stale(root: Path, generators: Sequence[Generator] = GENERATORS) -> dict[str, str]:
    """Find the files that are not what they would be now, with the text they should have."""
    files = {path: text for generate in generators for path, text in generate().items()}
    return {path: text for path, text in sorted(files.items()) if _read(root / path) != text}


def _read(path: Path) -> str | None:
    return path.read_text("utf-8") if path.exists() else None


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def _difference(path: str, old: str | None, new: str) -> str:
    before, after = (old or "").splitlines(), new.splitlines()
    lines = list(difflib.unified_diff(before, after, path, f"{path} (generated)", lineterm=""))
    more = [f"… and {len(lines) - SHOWN_LINES} more lines"] if len(lines) > SHOWN_LINES else []
    return "\n".join(lines[:SHOWN_LINES] + more)


def main(
    arguments: Sequence[str] | None = None,
    root: Path = ROOT,
    generators: Sequence[Generator] = GENERATORS,
) -> int:
    """Write what is stale, or with --check show it; 1 when the check found any."""
    parser = argparse.ArgumentParser(description="Write the generated files again.")
    parser.add_argument("--check", action="store_true", help="write nothing, show what is stale")
    check = parser.parse_args(arguments).check
    found = stale(root, generators)
    for path, text in found.items():
        if check:
            print(_difference(path, _read(root / path), text))
        else:
            _write(root / path, text)
            print(f"wrote {path}")
    if check and found:
        print("Stale. Run `make docs` and commit what it wrote.", file=sys.stderr)
    return 1 if check and found else 0


if __name__ == "__main__":
    sys.exit(main())
