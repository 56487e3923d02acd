"""The PostgreSQL schema that holds one instance's tables, and the names that derive from it.

Own to PostgreSQL: a file holds one instance.
"""

from __future__ import annotations

import re

from holdfast.errors import BadAddress

DEFAULT_SCHEMA = "holdfast"
NAME_LENGTH = 63
"""What PostgreSQL keeps of an identifier and of an application_name."""
_VALID = re.compile(r"(?!pg_)[A-Za-z_][A-Za-z0-9_-]{0,47}")


def check_schema_name(name: str) -> str:
    """Return a schema name that is valid; quotes and percent signs would need escaping twice."""
    if not _VALID.fullmatch(name):
        raise BadAddress(
            f"{name!r} is not a valid schema name: use at most 48 ASCII letters, digits, "
            "underscores and hyphens, with a letter or underscore first, and not pg_"
        )
    return name


def quoted(schema: str) -> str:
    """Quote a schema name as an SQL identifier."""
    return f'"{check_schema_name(schema)}"'


def search_path(schema: str) -> str:
    """Write the search_path: tables of the same names elsewhere are never found by it."""
    # pg_temp last: otherwise a temporary table would come first.
    return f"{quoted(schema)}, pg_temp"


def channel(schema: str) -> str:
    """Name the NOTIFY channel; `holdfast_submit` in the schema writes the same name."""
    return f"holdfast.{schema}"


def listener_name(schema: str) -> str:
    """Name the application_name of connections that LISTEN."""
    return f"holdfast listener {schema}"[:NAME_LENGTH]
