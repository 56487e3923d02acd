"""Query plans as data: what statements a store really sends, and how each reaches its rows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import apsw
import asyncpg
import pytest
from msgspec import Struct

from holdfast.stores.postgres.connections import SETTINGS, Connections
from holdfast.stores.sqlite import connections, database

Node = dict[str, Any]
LARGE = frozenset({"jobs", "events", "beats", "keys", "claims"})
"""Tables that grow with the work; all others stay small."""


class Statement(Struct, frozen=True):
    """A statement as it was sent, and the settings that its transaction had made for it."""

    text: str
    values: Any
    settings: tuple[str, ...] = ()

    @property
    def planned_each_time(self) -> bool:
        """Whether it is planned for its values, and not once for any."""
        return any("force_custom_plan" in setting for setting in self.settings)


class Access(Struct, frozen=True):
    """One way into a table, with the nodes above it, nearest first."""

    table: str
    by: str
    """The index, or the kind of scan that needs none."""
    condition: str
    above: tuple[str, ...]


class _Recorder:
    """A connection that writes down what it is asked in one unit of work."""

    def __init__(self, connection: Any, found: dict[str, Statement]) -> None:
        self._connection = connection
        self._found = found
        self._settings: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._connection, name)
        if name not in ("fetch", "fetchrow", "fetchval", "execute"):
            return method

        def recorded(text: str, *values: Any, **options: Any) -> Any:
            if text.startswith("SET LOCAL"):
                self._settings += (text,)
            self._found.setdefault(text, Statement(text, values, self._settings))
            return method(text, *values, **options)

        return recorded


@contextmanager
def recorded_postgres() -> Iterator[dict[str, Statement]]:
    """Collect the statements that PostgreSQL stores send, by text."""
    found: dict[str, Statement] = {}

    async def use(self: Connections, connection: Any, work: Any, tries: int) -> Any:
        return await work(_Recorder(connection, found), tries)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Connections, "_run_on_connection", use)
        yield found


@contextmanager
def recorded_sqlite() -> Iterator[dict[str, Statement]]:
    """Collect the statements that SQLite stores send, by text."""
    found: dict[str, Statement] = {}
    connect = connections.connect

    def record(cursor: Any, text: str, values: Any) -> bool:
        found.setdefault(text, Statement(text, values))
        return True

    def traced(*arguments: Any, **more: Any) -> apsw.Connection:
        connection = connect(*arguments, **more)
        connection.exec_trace = record
        return connection

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "connect", traced)
        yield found


async def connected(url: str) -> Any:
    """Connect as the store does, but for the pool."""
    return await asyncpg.connect(url, server_settings=SETTINGS, statement_cache_size=0)


async def explain(connection: Any, statement: Statement) -> Node:
    """Plan a statement as PostgreSQL would: for any values, or for these."""
    async with connection.transaction():
        for setting in statement.settings:
            await connection.execute(setting)
        if statement.planned_each_time:
            asked = f"EXPLAIN (FORMAT JSON) {statement.text}"
            text = await connection.fetchval(asked, *statement.values)
        else:
            text = await _explain_generic(connection, statement.text)
    plan: Node = json.loads(text)[0]["Plan"]
    return plan


async def _explain_generic(connection: Any, sql: str) -> str:
    await connection.execute(f"PREPARE planned AS {sql}")
    try:
        count = await connection.fetchval(
            "SELECT cardinality(parameter_types) FROM pg_prepared_statements WHERE name = 'planned'"
        )
        values = f"({', '.join(['NULL'] * count)})" if count else ""
        text: str = await connection.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE planned{values}")
    finally:
        await connection.execute("DEALLOCATE planned")
    return text


def walk(node: Node, above: tuple[Node, ...] = ()) -> Iterator[tuple[Node, tuple[Node, ...]]]:
    """Every node, with those above it, nearest first."""
    yield node, above
    for child in node.get("Plans", ()):
        yield from walk(child, (node, *above))


def accesses(plan: Node, *tables: str) -> list[Access]:
    """Every way into these tables, or into all that are large."""
    found = []
    for node, above in walk(plan):
        kind = str(node["Node Type"])
        table = str(node.get("Relation Name") or _of_bitmap(node, above))
        if table not in (tables or LARGE) or kind in ("ModifyTable", "Bitmap Heap Scan"):
            continue
        names = tuple(one["Node Type"] for one in above)
        condition = node.get("Index Cond", "")
        found.append(Access(table, node.get("Index Name", kind), condition, names))
    return found


def _of_bitmap(node: Node, above: tuple[Node, ...]) -> str | None:
    """A bitmap index scan does not say of which table; the heap scan above it does."""
    if node["Node Type"] != "Bitmap Index Scan":
        return None
    return next(str(one["Relation Name"]) for one in above if "Relation Name" in one)


def explain_sqlite(connection: apsw.Connection, statement: Statement) -> list[str]:
    """SQLite's own words on how it reaches each large table, aliases resolved."""
    rows = connection.execute(f"EXPLAIN QUERY PLAN {statement.text}", statement.values)
    names = dict(re.findall(r"\b(\w+) AS (\w+)", statement.text))
    tables = {alias: table for table, alias in names.items()}
    said = []
    for row in rows:
        words = str(row[3]).split()
        if words[0] in ("SCAN", "SEARCH"):
            words[1] = tables.get(words[1], words[1])
            if words[1] in LARGE:
                said.append(" ".join(words))
    return said
