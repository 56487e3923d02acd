"""Pages of the documentation, and the Python on them.

Hidden comments say how a page's code is run. Before a block: `<!-- fragment: WHY -->`, it is only
read. Anywhere: `<!-- hidden … -->`, code that is run without being shown. At the top of a page:
`<!-- pytest -->`, it is a test file; `<!-- run by PATH -->`, another test runs it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(
    r"(?P<fragment><!-- fragment: [^>]+ -->\n+)?```python\n(?P<shown>.*?)^```"
    r"|<!-- hidden\n(?P<hidden>.*?)^-->",
    re.DOTALL | re.MULTILINE,
)
_RUN_BY = re.compile(r"<!-- run by (\S+) -->")


class Block(NamedTuple):
    """Some code of a page, and the line it begins on."""

    source: str
    line: int
    is_fragment: bool

    @property
    def placed(self) -> str:
        """The code on the lines it has on its page, so that a traceback points there."""
        return "\n" * (self.line - 1) + self.source


class Page(NamedTuple):
    """One file of the documentation."""

    path: Path

    @property
    def name(self) -> str:
        """Where it is in the project."""
        return str(self.path.relative_to(ROOT))

    @property
    def text(self) -> str:
        """All of it."""
        return self.path.read_text("utf-8")

    @property
    def is_test(self) -> bool:
        """Whether its code is a test file."""
        return self.text.startswith("<!-- pytest -->")

    @property
    def run_by(self) -> str | None:
        """The test that runs its code instead."""
        found = _RUN_BY.search(self.text)
        return found[1] if found else None

    def blocks(self) -> Iterator[Block]:
        """Go through its code, top to bottom."""
        for match in _BLOCK.finditer(self.text):
            kind = "shown" if match["shown"] is not None else "hidden"
            line = self.text.count("\n", 0, match.start(kind)) + 1
            yield Block(match[kind], line, bool(match["fragment"]))


def pages() -> list[Page]:
    """List the documentation, without what is kept for history."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return [Page(path) for path in sorted(found)]
