"""What a PostgreSQL server saw of some work: statements, transactions, rows, WAL, disk."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self

from msgspec import Struct

from tests.support.postgres import PostgresCluster, database_of
from tests.support.waiting import wait_until

SETTINGS = {
    "shared_preload_libraries": "pg_stat_statements",
    # Both would write at moments of their own: WAL and pages are counted between two checkpoints.
    "autovacuum": "off",
    "checkpoint_timeout": "1h",
    "max_wal_size": "8GB",
    "fsync": "off",
}

STATEMENTS = """
SELECT s.calls || '|' || regexp_replace(s.query, '\\s+', ' ', 'g')
FROM pg_stat_statements AS s JOIN pg_database AS d ON d.oid = s.dbid
WHERE d.datname = '{}' AND s.query !~ 'pg_stat_reset' ORDER BY s.calls DESC
"""
ROWS = """
SELECT relname, n_tup_ins, n_tup_upd, n_tup_hot_upd, n_tup_del, pg_total_relation_size(relid),
    coalesce(idx_scan, 0) + seq_scan, coalesce(idx_tup_fetch, 0) + seq_tup_read
FROM pg_stat_user_tables
"""
POSITION = "SELECT pg_current_xact_id(), pg_current_wal_insert_lsn() - '0/0'::pg_lsn"


class Rows(Struct, frozen=True):
    """How often the rows of one table were written, and how large it is now."""

    inserted: int
    updated: int
    hot: int
    deleted: int
    bytes: int
    looks: int
    """How often an index of it was entered, or all of it read."""
    read: int
    """How many rows that found."""

    @property
    def written(self) -> int:
        """All of them."""
        return self.inserted + self.updated + self.deleted


class Seen(Struct, frozen=True):
    """What the server saw of one stretch of work."""

    statements: dict[str, int]
    """How often each was run, by its text in one line."""
    transactions: int
    """Those that wrote: each has an id of its own, and waits for the disk once."""
    wal_bytes: int
    rows: dict[str, Rows]

    def calls(self, words: str) -> int:
        """How often statements with these words were run."""
        return sum(calls for text, calls in self.statements.items() if words in text)


class Server:
    """One database of a server that counts."""

    def __init__(self, cluster: PostgresCluster, url: str) -> None:
        """Look at the database behind `url`."""
        self._cluster = cluster
        self._name = database_of(url)

    @classmethod
    def looking_at(cls, cluster: PostgresCluster, url: str) -> Self:
        """Begin to look."""
        cluster.sql("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        return cls(cluster, url)

    def watch(self, work: Callable[[], object]) -> Seen:
        """Do some work and tell what it was; it must have closed its connections by its end."""
        # Just after a checkpoint every page that is touched goes to the WAL whole, once.
        self._cluster.sql("CHECKPOINT")
        self._cluster.sql("SELECT pg_stat_statements_reset()")
        transactions, position = self._position()
        rows = self.watch_rows(work)
        transactions_after, position_after = self._position()
        return Seen(
            statements=self._statements(),
            transactions=transactions_after - transactions - 1,
            wal_bytes=position_after - position,
            rows=rows,
        )

    def watch_rows(self, work: Callable[[], object]) -> dict[str, Rows]:
        """Do some work and tell what became of the rows; any server can."""
        self._end_of_backends()
        self._cluster.sql("SELECT pg_stat_reset()", self._name)
        work()
        self._end_of_backends()
        return self._rows()

    def _end_of_backends(self) -> None:
        """What a backend counted is complete only when it has ended."""
        wait_until(lambda: self._backends() == 0, "all backends to end")

    def _position(self) -> tuple[int, int]:
        transaction, position = self._cluster.sql(POSITION, self._name).split("|")
        return int(transaction), int(position)

    def _backends(self) -> int:
        return int(
            self._cluster.sql(
                f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{self._name}'"
            )
        )

    def _statements(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for line in self._cluster.sql(STATEMENTS.format(self._name)).splitlines():
            calls, _, text = line.partition("|")
            found[text] = found.get(text, 0) + int(calls)
        return found

    def _rows(self) -> dict[str, Rows]:
        lines = (line.split("|") for line in self._cluster.sql(ROWS, self._name).splitlines())
        return {table: Rows(*map(int, numbers)) for table, *numbers in lines}
