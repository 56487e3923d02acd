"""The pages of the documentation, and the Python code on them.

Hidden comments control how the code of a page is run. A block after `<!-- fragment: WHY -->` is
compiled and not run. `<!-- hidden … -->` contains code that is run and not shown. At the top of
a page, `<!-- pytest -->` makes it a test file; `<!-- run by PATH -->` names the test that runs it.
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
    """A block of code on a page, and the line on which it starts."""

    source: str
    line: int
    is_fragment: bool

    @property
    def placed(self) -> str:
        """The code at its line numbers on the page, so that a traceback points there."""
        return "\n" * (self.line - 1) + self.source


class Page(NamedTuple):
    """One file of the documentation."""

    path: Path

    @property
    def name(self) -> str:
        """Its path in the project."""
        return str(self.path.relative_to(ROOT))

    @property
    def text(self) -> str:
        """The text of the page."""
        return self.path.read_text("utf-8")

    @property
    def is_test(self) -> bool:
        """Whether its code is a test file."""
        return self.text.startswith("<!-- pytest -->")

    @property
    def run_by(self) -> str | None:
        """The test that runs its code, if another test does."""
        found = _RUN_BY.search(self.text)
        return found[1] if found else None

    def blocks(self) -> Iterator[Block]:
        """Yield its blocks of code, top to bottom."""
        for match in _BLOCK.finditer(self.text):
            kind = "shown" if match["shown"] is not None else "hidden"
            line = self.text.count("\n", 0, match.start(kind)) + 1
            yield Block(match[kind], line, bool(match["fragment"]))


def pages() -> list[Page]:
    """Return all pages of the documentation."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return [Page(path) for path in sorted(found)]
