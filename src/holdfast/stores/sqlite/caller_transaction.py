"""A caller's own statements on the store's writer: in one transaction with the jobs it submits.

Its tables are in the same file, so that both are written or neither is. It shares the transaction
with others, and so may not end it, look outside the file, or touch what is Holdfast's. differs from
postgres: there the caller has a connection of its own, and calls an SQL function on it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeAlias, TypeVar

import apsw

from holdfast.errors import StatementFailed
from holdfast.lifecycle.record import NewJob
from holdfast.lifecycle.terms import TaskTerms
from holdfast.ports.models import SubmitOutcome
from holdfast.stores.side_tables import choose_terms
from holdfast.stores.sql_files import schema
from holdfast.stores.sqlite.connections import BUSY, FATAL
from holdfast.stores.sqlite.rows import Row
from holdfast.stores.sqlite.submit import submit
from holdfast.stores.sqlite.turn import Turn

T = TypeVar("T")
Parameters: TypeAlias = Sequence[Any] | dict[str, Any]
LONGEST_SECONDS = 5.0
"""What one caller may take: all others wait meanwhile, and leases are renewed every 10 to 30 s."""
STEPS = 10_000
"""Steps of SQLite's virtual machine between two looks at the time: well under a millisecond."""

_FREE = {apsw.SQLITE_SELECT, apsw.SQLITE_FUNCTION, apsw.SQLITE_RECURSIVE}
_NAMES_FIRST = {
    apsw.SQLITE_READ,
    apsw.SQLITE_INSERT,
    apsw.SQLITE_UPDATE,
    apsw.SQLITE_DELETE,
    apsw.SQLITE_CREATE_TABLE,
    apsw.SQLITE_DROP_TABLE,
    apsw.SQLITE_CREATE_VIEW,
    apsw.SQLITE_DROP_VIEW,
    apsw.SQLITE_CREATE_VTABLE,
    apsw.SQLITE_DROP_VTABLE,
}
"""Actions of which the first argument is a table."""
_NAMES_SECOND = {
    apsw.SQLITE_ALTER_TABLE,
    apsw.SQLITE_CREATE_INDEX,
    apsw.SQLITE_DROP_INDEX,
    apsw.SQLITE_CREATE_TRIGGER,
    apsw.SQLITE_DROP_TRIGGER,
}
_NEVER = {
    apsw.SQLITE_TRANSACTION: "start or end a transaction: it ends with the block",
    apsw.SQLITE_SAVEPOINT: "use savepoints",
    apsw.SQLITE_ATTACH: "attach another file",
    apsw.SQLITE_DETACH: "detach a file",
    apsw.SQLITE_PRAGMA: "use pragmas",
    # Statistics would change the plans of Holdfast's own statements.
    apsw.SQLITE_ANALYZE: "analyse",
}


@cache
def own_names() -> frozenset[str]:
    """List the tables and views that are Holdfast's, and what steers how it reads them."""
    made = re.findall(r"^CREATE (?:TABLE|VIEW) (\w+)", schema("sqlite"), re.M)
    return frozenset({*made, "migrations", "sqlite_stat1", "sqlite_stat4"})


class Fence:
    """What SQLite asks about every statement it prepares; only a guest's are refused anything.

    It stays on the connection permanently: to set one makes SQLite prepare all statements again.
    """

    def __init__(self) -> None:
        self.up = False
        self.refused: str | None = None

    def __call__(self, action: int, one: str | None, two: str | None, *_: str | None) -> int:
        """Return whether it may be done."""
        if not self.up or action in _FREE:
            return apsw.SQLITE_OK
        self.refused = _find_refusal(action, one, two)
        return apsw.SQLITE_OK if self.refused is None else apsw.SQLITE_DENY


def _find_refusal(action: int, one: str | None, two: str | None) -> str | None:
    if action not in _NAMES_FIRST | _NAMES_SECOND:
        return _NEVER.get(action, "do that")
    table = (one if action in _NAMES_FIRST else two) or ""
    return f"touch {table}, which is Holdfast's" if table.lower() in own_names() else None


def fence_of(connection: apsw.Connection) -> Fence:
    """Find the fence of a connection, or put one up."""
    fence = connection.authorizer
    if not isinstance(fence, Fence):
        fence = Fence()
        connection.authorizer = fence
    return fence


class Guest:
    """What a caller has for one transaction, on the writer's thread: statements and submits."""

    def __init__(self, turn: Turn) -> None:
        """Start; the time runs from now on."""
        self._turn = turn
        self._connection = turn.connection
        self._fence = fence_of(turn.connection)
        self._until = time.monotonic() + LONGEST_SECONDS

    def execute(self, sql: str, parameters: Parameters = ()) -> list[Row]:
        """Run the caller's statements, and read all that they return."""
        self._check_still_open()
        try:
            with self._raise_fence():
                # Not cached: a text that Holdfast uses too would pass without being looked at.
                return self._connection.execute(sql, parameters, can_cache=False).fetchall()
        except (*FATAL, *BUSY):
            raise
        except apsw.Error as error:
            raise self._explain_failure(sql, error) from error

    def submit(self, jobs: Sequence[NewJob]) -> list[SubmitOutcome]:
        """Submit decided jobs."""
        self._check_still_open()
        return submit(self._turn, jobs)

    def task_terms(self, tenant: str, tasks: Sequence[str]) -> list[TaskTerms | None]:
        """Read the terms that workers published of tasks, in the order of the tasks."""
        self._check_still_open()
        return choose_terms(tasks, self._turn.rows("task_terms", tenant, list(tasks)))

    @contextmanager
    def _raise_fence(self) -> Iterator[None]:
        self._fence.up, self._fence.refused = True, None
        self._connection.set_progress_handler(self._is_late, STEPS)
        try:
            yield
        finally:
            self._connection.set_progress_handler(None)
            self._fence.up = False

    def _is_late(self) -> bool:
        return time.monotonic() > self._until

    def _check_still_open(self) -> None:
        if not self._connection.in_transaction:
            # By INSERT OR ROLLBACK, or a trigger of the caller's: what comes now would be kept.
            raise StatementFailed("a statement before this one has rolled the transaction back")
        if self._is_late():
            raise StatementFailed(_LATE)

    def _explain_failure(self, sql: str, error: apsw.Error) -> StatementFailed:
        shown = " ".join(sql.split())[:100]
        if self._fence.refused is not None:
            return StatementFailed(f"{shown!r} may not {self._fence.refused}", code="not_allowed")
        if isinstance(error, apsw.InterruptError):
            return StatementFailed(f"{shown!r}: {_LATE}", code="too_long")
        constraint = isinstance(error, apsw.ConstraintError)
        return StatementFailed(f"{shown!r}: {error}", code="constraint" if constraint else None)


_LATE = f"the transaction has taken {LONGEST_SECONDS:g} s, and all others wait for it"


def run_as_guest(turn: Turn, work: Callable[[Guest], T]) -> T:
    """Do a caller's work in a turn of its own."""
    try:
        return work(Guest(turn))
    except Exception:
        raise
    except BaseException as error:
        # It would end the writer, and with it all stores of the file.
        raise StatementFailed(f"the transaction was left by {error!r}") from error
