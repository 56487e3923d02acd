"""SQL files: named blocks, and the few words in them that have another source.

A block starts with a line `-- name: NAME`. In its text are replaced:
`{{state.claimed}}`, `{{event.job_claimed}}`, … by the codes of the law; `{{law.NAME}}` by what
`schema_sql` writes, under `ENGINE.NAME` or `NAME`; `{{columns.jobs}}` by how a job is read: with
the names of its pending signals, which are rows of their own and are read by the block `pending`;
`{{columns.row}}` by the columns themselves, `{{columns.beats}}` by a heartbeat as an event, and
`{{columns.tokens}}`, … by those of a table of `side_tables`.

Statements that read the same on both engines stand once, in `stores/queries.sql`. Their parameters
are written `$1`, which is `?1` on SQLite. Two words differ by engine: `{{any.uuid.1}}` compares
with a list that is parameter 1, and `{{apart}}` keeps PostgreSQL from joining a subquery: the plan
that is kept may have been made when the table was empty, and would then read all of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files

from holdfast.errors import SchemaMismatch
from holdfast.lifecycle.states import Coded, EventType, KeyKind, Letter, Link, Retention, State
from holdfast.stores.columns import EVENT_COLUMNS, JOB_COLUMNS
from holdfast.stores.schema_sql import FRAGMENTS
from holdfast.stores.side_tables import SIDE_TABLES

SHARED = "holdfast.stores"
_WORD = re.compile(r"\{\{([a-z_]+)(?:\.([a-z_.0-9]+))?\}\}")
_COMMENT = re.compile(r"^--.*\n", re.MULTILINE)
_PARAMETER = re.compile(r"\$(\d+)")
PENDING, PENDING_BLOCK = "pending_signals", "pending"
"""The column that counts a job's pending signals, and the block that reads them."""
_NAME = re.compile(r"^-- name: ([a-z_]+)\n", re.MULTILINE)
_WORDS: dict[str, type[Coded]] = {
    "state": State,
    "event": EventType,
    "retention": Retention,
    "key": KeyKind,
    "link": Link,
    "letter": Letter,
}


def fill(text: str, engine: str, pending: str = "") -> str:
    """Replace the words of an SQL text; `pending` reads a job's pending signals."""

    def word(match: re.Match[str]) -> str:
        kind, name = match.groups()
        match kind:
            case "law":
                return (FRAGMENTS.get(f"{engine}.{name}") or FRAGMENTS[name])()
            case "columns":
                return _list_columns(name, pending)
            case "any":
                return _ANY[engine](*name.split("."))
            case "apart":
                return "OFFSET 0" if engine == "postgres" else ""
            case _:
                return str(_code(_WORDS[kind].named(name)))

    return _WORD.sub(word, text)


def _sqlite_any(kind: str, number: str) -> str:
    value = "unhex(value)" if kind == "uuid" else "value"
    return f"IN (SELECT {value} FROM json_each(?{number}))"  # noqa: S608  our own words


_ANY: dict[str, Callable[[str, str], str]] = {
    "postgres": lambda kind, number: f"= ANY (${number}::{kind}[])",
    "sqlite": _sqlite_any,
}


def _code(word: Coded) -> int:
    if not word.code:
        raise KeyError("an SQL file names a word that the law does not have")
    return word.code


def _list_columns(name: str, pending: str) -> str:
    what, _, prefix = name.partition(".")
    names = _COLUMNS[what]
    columns = [f"{prefix}.{column}" if prefix else column for column in names]
    if what in ("jobs", PENDING_BLOCK):
        read = pending.replace(":job", prefix or "jobs")
        columns[names.index(PENDING)] = f"{read} AS {PENDING}"
    return ", ".join(columns)


_BEAT = (
    *("id", "rev", "type", "state", "state", "at", "attempt", "0", "lease_expires_at"),
    *("NULL", "NULL", "CAST(1 AS smallint)", "actor", "request_id", "reason"),
    *("NULL", "NULL", "NULL", "NULL", "seal"),
)
"""A heartbeat in the order of `EVENT_COLUMNS`."""
_COLUMNS: dict[str, tuple[str, ...]] = {
    "jobs": JOB_COLUMNS,
    "row": JOB_COLUMNS,
    PENDING_BLOCK: (PENDING,),
    "events": EVENT_COLUMNS,
    "beats": _BEAT,
    **{name: table.columns for name, table in SIDE_TABLES.items()},
}


def raw_blocks(package: str, file: str = "queries.sql") -> dict[str, str]:
    """Read the named blocks of an SQL file as they stand in it."""
    parts = _NAME.split(files(package).joinpath(file).read_text(encoding="utf-8"))[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def put_in(text: str, parts: Mapping[str, str]) -> str:
    """Put parts into a block in place of `:word` or `:some.word`, in this order."""
    for word, part in parts.items():
        # No part has a backslash, which would have a meaning here.
        text = re.sub(rf":{re.escape(word)}\b(?!\.)", part, text)
    return text


def without_comment(text: str) -> str:
    """Return a block without the lines that describe it, to be put into another."""
    return _COMMENT.sub("", text).strip()


@cache
def blocks(package: str, file: str = "queries.sql") -> dict[str, str]:
    """Read the named blocks of an SQL file that belongs to one engine."""
    engine = package.rpartition(".")[2]
    return {name: fill(text, engine).strip() for name, text in raw_blocks(package, file).items()}


@cache
def statements(engine: str) -> dict[str, str]:
    """Read the statements of an engine: those that both share, and its own."""
    shared, own = raw_blocks(SHARED), raw_blocks(f"{SHARED}.{engine}")
    if engine == "sqlite":
        shared = {name: _PARAMETER.sub(r"?\1", text) for name, text in shared.items()}
    pending = without_comment(own[PENDING_BLOCK])
    return {name: fill(text, engine, pending).strip() for name, text in (shared | own).items()}


def schema(engine: str) -> str:
    """Write the whole schema as it stands after all migrations."""
    path = files(f"{SHARED}.{engine}").joinpath("schema.in.sql")
    return fill(path.read_text(encoding="utf-8"), engine)


def newer_schema(found: int, known: int) -> SchemaMismatch:
    """Make the error for a database of a later version than this one."""
    return SchemaMismatch(f"the schema is at migration {found}, not {known}; upgrade Holdfast")


def foreign_tables_error(place: str) -> SchemaMismatch:
    """Make the error for a database that another application uses."""
    return SchemaMismatch(
        f"{place!r} holds other tables and none of Holdfast's; check the address, or migrate with "
        "--beside-others"
    )


def read_migrations(package: str) -> list[tuple[int, str, str]]:
    """List the numbered migrations: number, name, text."""
    found = []
    for entry in files(package).joinpath("migrations").iterdir():
        number, _, name = entry.name.removesuffix(".sql").partition("_")
        if entry.name.endswith(".sql"):
            found.append((int(number), name, entry.read_text(encoding="utf-8")))
    return sorted(found)
