"""SQL files: named blocks, and the few words in them that come from the law.

A block begins with a line `-- name: NAME`. `{{state.claimed}}`, `{{event.job_claimed}}`,
`{{columns.jobs}}` and `{{law.NAME}}` are replaced by codes and lists that have one source, the law.
`{{columns.jobs}}` is how a job is read: with the names of its pending signals, which are rows of
their own and are read by the block `pending`. `{{columns.row}}` are the columns themselves.
"""

from __future__ import annotations

import re
from functools import cache, partial
from importlib.resources import files

from holdfast.errors import SchemaMismatch
from holdfast.lifecycle.states import Coded, EventType, KeyKind, Letter, Link, Retention, State
from holdfast.stores.columns import EVENT_COLUMNS, JOB_COLUMNS
from holdfast.stores.law import FRAGMENTS

_WORD = re.compile(r"\{\{([a-z_]+)\.([a-z_.]+)\}\}")
_COMMENT = re.compile(r"^--.*\n", re.MULTILINE)
PENDING, PENDING_BLOCK = "pending_signals", "pending"
"""The column that counts a job's pending signals, and the block that reads them."""
_NAME = re.compile(r"^-- name: ([a-z_]+)\n", re.MULTILINE)


def fill(text: str, pending: str = "") -> str:
    """Put the law's words into an SQL text; `pending` reads a job's pending signals."""
    return _WORD.sub(partial(_word, pending), text)


def _word(pending: str, match: re.Match[str]) -> str:
    kind, name = match.groups()
    match kind:
        case "law":
            return FRAGMENTS[name]()
        case "columns":
            return _columns(name, pending)
        case _:
            return str(_code(_WORDS[kind].named(name)))


def _code(word: Coded) -> int:
    if not word.code:
        raise KeyError("an SQL file names a word that the law does not have")
    return word.code


_WORDS: dict[str, type[Coded]] = {
    "state": State,
    "event": EventType,
    "retention": Retention,
    "key": KeyKind,
    "link": Link,
    "letter": Letter,
}


def _columns(name: str, pending: str) -> str:
    what, _, prefix = name.partition(".")
    names = {"events": EVENT_COLUMNS, "pending": (PENDING,)}.get(what, JOB_COLUMNS)
    columns = [f"{prefix}.{column}" if prefix else column for column in names]
    if what in ("jobs", "pending"):
        read = pending.replace(":job", prefix or "jobs")
        columns[names.index(PENDING)] = f"{read} AS {PENDING}"
    return ", ".join(columns)


@cache
def blocks(package: str, file: str = "queries.sql") -> dict[str, str]:
    """Read the named blocks of an SQL file."""
    text = files(package).joinpath(file).read_text(encoding="utf-8")
    parts = _NAME.split(text)[1:]
    found = dict(zip(parts[::2], parts[1::2], strict=True))
    pending = _COMMENT.sub("", found.get(PENDING_BLOCK, "")).strip()
    return {name: fill(body, pending).strip() for name, body in found.items()}


def schema(package: str) -> str:
    """Write the whole schema as it stands after all migrations."""
    return fill(files(package).joinpath("schema.in.sql").read_text(encoding="utf-8"))


def newer_schema(found: int, known: int) -> SchemaMismatch:
    """Say that a database is of a later version than this one."""
    return SchemaMismatch(f"the schema is at migration {found}, not {known}; upgrade Holdfast")


def foreign_tables(place: str) -> SchemaMismatch:
    """Say that a database is in use by somebody else."""
    return SchemaMismatch(
        f"{place!r} holds other tables and none of Holdfast's; check the address, or migrate with "
        "--beside-others"
    )


def migrations(package: str) -> list[tuple[int, str, str]]:
    """List the numbered migrations: number, name, text."""
    found = []
    for entry in files(package).joinpath("migrations").iterdir():
        number, _, name = entry.name.removesuffix(".sql").partition("_")
        if entry.name.endswith(".sql"):
            found.append((int(number), name, entry.read_text(encoding="utf-8")))
    return sorted(found)
