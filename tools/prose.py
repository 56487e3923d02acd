"""Words and phrases that our prose avoids, and where they stand: in code, docs and CLI help.

Write as a manual does: subject, verb, object, and the field's own word. Each pattern names what to
write instead. Code is read by its tokens, identifiers included; fenced code in docs is left out.
"""

import io
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

PACKAGE = "src/holdfast"
PAGES = ("*.md", "docs/**/*.md")
INSTEAD = {
    r"tell|tells|told|telling": "return, report, describe, show",
    r"say|says|said|saying": "return, report, describe, state",
    r"whoever|whomever": "the client, the caller, the owner",
    r"somebody": "a client, a caller, a person",
    r"mend|mends|mended|mending": "fix, correct",
    r"unfit|misfit": "invalid",
    r"wish|wishes|wished": "request, options, filter",
    r"begin|begins|began|begun|beginning": "start",
    r"(?<!there )(?:is|are) no (?!longer|more|one|other)": "is not a",
    r"(?:has|have|had) it not": "lacks",
    r"(?:come|comes|came) again": "retry, return",
    r"so (?:many|long)(?! (?:as|that))": "a number, a time limit",
}
INSTEAD_IN_PROSE = {
    r"(?-i:Of)(?! course)": "subject, verb, object",
    r"(?:go|goes|going|gone|went) on": "continue",
    r"anew": "again",
    r"for good": "permanently",
    r"park|parks|parked|parking": "wait, suspend",
    r"stand for|stands for": "belong to, mean",
    r"mint|mints|minted": "generate",
    r"everybody|anybody": "every client, any process",
    r"(?:inside|outside) of": "inside, outside",
    r"(?:come|comes|came|coming) back": "return, reconnect",
}
"""Further ones: in pages, comments and strings, but not in names, where `mint_id` is usual."""


def _compiled(instead: dict[str, str]) -> list[tuple[re.Pattern[str], str]]:
    return [(re.compile(rf"\b(?:{one})\b", re.IGNORECASE), to) for one, to in instead.items()]


_PATTERNS = _compiled(INSTEAD)
_PATTERNS_IN_PROSE = _compiled(INSTEAD | INSTEAD_IN_PROSE)
_SQL_WORDS = re.compile(r"\bBEGIN\b")
_CODE = re.compile(r"`[^`\n]*`")
_REPLACED = re.compile(r"\{[^{}]*\}")
WIRE_NAMES = frozenset({"say", "begun", "unfit", "Said", "parked"})
"""What clients know by these names; only a string that is nothing else is left out."""


def flagged(text: str, *, is_name: bool = False) -> Iterator[tuple[str, str]]:
    """Find what the lists name in a text, each with what to write instead."""
    text = re.sub(r"\s+", " ", _SQL_WORDS.sub("", text))
    for pattern, instead in _PATTERNS if is_name else _PATTERNS_IN_PROSE:
        for match in pattern.finditer(text):
            yield match[0], instead


def in_code(text: str) -> Iterator[tuple[int, str, str]]:
    """Find them in a module: names by their parts, comments and strings as prose."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            readable = re.sub(r"_|(?<=[a-z])(?=[A-Z])", " ", token.string)
        elif token.type in (tokenize.STRING, tokenize.COMMENT):
            readable = _prose_of(token.string)
        else:
            continue
        for word, instead in flagged(readable, is_name=token.type == tokenize.NAME):
            yield token.start[0], word, instead


def _prose_of(token: str) -> str:
    if token.strip("\"'") in WIRE_NAMES:
        return ""
    text = _REPLACED.sub("", token) if token.startswith(("f", "F")) else token
    return _CODE.sub("", text)


def in_sql(text: str) -> Iterator[tuple[int, str, str]]:
    """Find them in the comments of a file of statements."""
    for number, line in enumerate(text.splitlines(), 1):
        _, found, comment = line.partition("--")
        for word, instead in flagged(comment if found else ""):
            yield number, word, instead


def in_page(text: str) -> Iterator[tuple[int, str, str]]:
    """Find them in a page, outside code and hidden comments."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            for word, instead in flagged(re.sub(r"`[^`]*`|<!--.*?-->", "", line)):
                yield number, word, instead


def in_help(app: typer.Typer) -> Iterator[tuple[str, str, str]]:
    """Find them in what `--help` shows, by command."""

    # Typer brings its own copy of click: what a group is shows only by its commands.
    def visit(command: Any, path: str) -> Iterator[tuple[str, str, str]]:
        texts = [command.help, *(getattr(one, "help", None) for one in command.params)]
        for word, instead in flagged("\n".join(filter(None, texts))):
            yield path, word, instead
        for name, below in getattr(command, "commands", {}).items():
            yield from visit(below, f"{path} {name}")

    yield from visit(typer.main.get_command(app), "holdfast")


def words_by_room(root: Path) -> dict[str, list[str]]:
    """List every flagged word as `place: word (instead)`, by folder, docs and help apart."""
    found: dict[str, list[str]] = defaultdict(list)
    package = root / PACKAGE
    for path in sorted([*package.rglob("*.py"), *package.rglob("*.sql")]):
        parts = path.relative_to(package).parts
        room = parts[0] if len(parts) > 1 else "."
        find = in_code if path.suffix == ".py" else in_sql
        for line, word, instead in find(path.read_text("utf-8")):
            found[room].append(f"{path.relative_to(root)}:{line}: {word} ({instead})")
    for page in sorted(path for pattern in PAGES for path in root.glob(pattern)):
        for line, word, instead in in_page(page.read_text("utf-8")):
            found["docs"].append(f"{page.relative_to(root)}:{line}: {word} ({instead})")
    for command, word, instead in _help_words():
        found["help"].append(f"{command}: {word} ({instead})")
    return found


def _help_words() -> Iterator[tuple[str, str, str]]:
    from holdfast.cli.main import app

    yield from in_help(app)
