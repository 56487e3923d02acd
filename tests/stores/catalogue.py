"""What a database really has, as data that two databases can be compared by."""

from __future__ import annotations

import re
from typing import Any

import apsw

# In each query, the first columns name a thing and the last describes it. The order of columns
# counts: statements may insert by position.
_POSTGRES = {
    "columns": """
        SELECT c.relname, a.attnum || ' ' || a.attname, concat_ws(' ',
            format_type(a.atttypid, a.atttypmod), CASE WHEN a.attnotnull THEN 'NOT NULL' END,
            'identity ' || nullif(a.attidentity::text, ''),
            'generated ' || nullif(a.attgenerated::text, ''),
            pg_get_expr(d.adbin, d.adrelid))
        FROM pg_attribute AS a JOIN pg_class AS c ON c.oid = a.attrelid
        LEFT JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum
        WHERE c.relnamespace = 'holdfast'::regnamespace AND c.relkind IN ('r', 'v', 'p')
            AND a.attnum > 0 AND NOT a.attisdropped""",
    "options": """
        SELECT relname, relkind::text, coalesce(reloptions::text, '') FROM pg_class
        WHERE relnamespace = 'holdfast'::regnamespace""",
    "constraints": """
        SELECT c.relname, o.conname, pg_get_constraintdef(o.oid) || ' ' || o.convalidated::text
        FROM pg_constraint AS o JOIN pg_class AS c ON c.oid = o.conrelid
        WHERE c.relnamespace = 'holdfast'::regnamespace""",
    "indexes": """
        SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'holdfast'""",
    "triggers": """
        SELECT c.relname, t.tgname, pg_get_triggerdef(t.oid) || ' ' || t.tgenabled::text
        FROM pg_trigger AS t JOIN pg_class AS c ON c.oid = t.tgrelid
        WHERE NOT t.tgisinternal AND c.relnamespace = 'holdfast'::regnamespace""",
    "functions": """
        SELECT '', p.oid::regprocedure::text, pg_get_functiondef(p.oid) FROM pg_proc AS p
        WHERE p.pronamespace = 'holdfast'::regnamespace""",
    "views": """
        SELECT '', viewname, definition FROM pg_views WHERE schemaname = 'holdfast'""",
    "settings": "SELECT 'meta', key, value FROM meta",
}
_SQLITE = {
    "columns": """
        SELECT t.name, c.cid || ' ' || c.name, c.type || ' ' || c."notnull" || ' ' || c.pk || ' '
            || c.hidden || ' ' || coalesce(c.dflt_value, '')
        FROM sqlite_schema AS t, pragma_table_xinfo(t.name) AS c WHERE t.type = 'table'""",
    "sql": "SELECT tbl_name, type || ' ' || name, sql FROM sqlite_schema WHERE sql IS NOT NULL",
    "settings": "SELECT 'meta', key, value FROM meta",
}
Catalogue = dict[str, str]
"""Each thing's kind, table and name; and its definition."""


async def postgres_catalogue(connection: Any) -> Catalogue:
    """Describe a PostgreSQL database, but for the table of migrations."""
    rows = {kind: await connection.fetch(sql) for kind, sql in _POSTGRES.items()}
    return _catalogue(rows)


def sqlite_catalogue(connection: apsw.Connection) -> Catalogue:
    """Describe a SQLite database, but for the table of migrations."""
    return _catalogue({kind: list(connection.execute(sql)) for kind, sql in _SQLITE.items()})


def _catalogue(found: dict[str, list[Any]]) -> Catalogue:
    return {
        f"{kind}: {table} {name}": _plain(text)
        for kind, rows in found.items()
        for table, name, text in rows
        if not f"{table} {name}".strip().startswith(("migrations", "sqlite_"))
    }


def _plain(text: str) -> str:
    """Leave out comments and layout: SQLite keeps a definition as it was typed.

    A column that was added later stands before the last bracket, with spaces of its own.
    """
    words = " ".join(re.sub(r"--[^\n]*", "", text).split())
    return re.sub(r" ?([,)]) ?", r"\1 ", words)


def postgres_names(catalogue: Catalogue, kind: str) -> set[tuple[str, str]]:
    """The (table, name) of columns, indexes, triggers or CHECKs that a person has named."""
    behind_keys = {name for _, name in _keys(catalogue, "constraints")}
    return {
        (table, name)
        for table, name in _keys(catalogue, kind)
        if not table.endswith("_readable")
        and not (kind == "indexes" and name in behind_keys)
        and not (kind == "constraints" and name.endswith(("_pkey", "_key")))
    }


def _keys(catalogue: Catalogue, kind: str) -> set[tuple[str, str]]:
    found = [key.split() for key in catalogue if key.startswith(f"{kind}: ")]
    return {(words[1], words[-1]) for words in found}


_SQLITE_KIND = {"indexes": "index", "triggers": "trigger"}


def sqlite_names(catalogue: Catalogue, kind: str) -> set[tuple[str, str]]:
    """The same of a SQLite database."""
    if kind == "columns":
        return _keys(catalogue, kind)
    told = [(key.split(), text) for key, text in catalogue.items() if key.startswith("sql: ")]
    if kind == "constraints":
        return {
            (words[1], name)
            for words, text in told
            for name in re.findall(r"CONSTRAINT (\w+) CHECK", text)
        }
    return {(words[1], words[3]) for words, _ in told if words[2] == _SQLITE_KIND[kind]}
