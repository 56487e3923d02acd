"""What SQLite did for some work: statements, transactions, steps, syncs, bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import apsw
from msgspec import Struct, field

_numbers = count(1)
RUNS, STEPS, SCANNED = (f"SQLITE_STMTSTATUS_{name}" for name in ("RUN", "VM_STEP", "FULLSCAN_STEP"))


class Done(Struct):
    """What was done to one database file."""

    statements: Counter[str] = field(default_factory=Counter)
    """How often each was run, by its text in one line; those of triggers are not counted."""
    rows: int = 0
    """Rows that were inserted, updated or deleted, by triggers too."""
    steps: int = 0
    """Instructions of SQLite's virtual machine, for statements that write."""
    read_steps: int = 0
    """The same for statements that only read."""
    scanned: int = 0
    """Rows that were read by going through a table from end to end."""
    syncs: int = 0
    written: int = 0
    """Bytes, to the file and its WAL."""

    def calls(self, words: str) -> int:
        """How often statements with these words were run."""
        return sum(calls for text, calls in self.statements.items() if words in text)


class CountingDisk(apsw.VFS):
    """The default disk, whose syncs and written bytes are counted."""

    def __init__(self) -> None:
        """Register it under a name of its own."""
        self.name = f"counting-{next(_numbers)}"
        self.done = Done()
        super().__init__(self.name, "")

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        """Open a file that counts."""
        return _CountingFile(self, name, flags)


class _CountingFile(apsw.VFSFile):
    def __init__(
        self, disk: CountingDisk, name: str | apsw.URIFilename | None, flags: list[int]
    ) -> None:
        super().__init__("", name, flags)
        self._disk = disk

    def xWrite(self, data: bytes, offset: int) -> None:
        self._disk.done.written += len(data)
        super().xWrite(data, offset)

    def xSync(self, flags: int) -> None:
        self._disk.done.syncs += 1
        super().xSync(flags)


@contextmanager
def counting_disk() -> Iterator[CountingDisk]:
    """Register a disk, for as long as the block runs."""
    disk = CountingDisk()
    try:
        yield disk
    finally:
        disk.unregister()


def watch(disk: CountingDisk, work: Callable[[], object]) -> Done:
    """Do some work and tell what it was; it must have closed its stores by its end."""
    disk.done = done = Done()
    changes: dict[int, int] = {}
    counted: dict[int, dict[str, int]] = {}

    def traced(event: dict[str, Any]) -> None:
        sql, status = str(event["sql"]), event["stmt_status"]
        done.statements[" ".join(sql.split())] += 1
        changes[id(event["connection"])] = event["total_changes"]
        # The counters of a statement that is kept and run again may run on.
        before = counted.get(event["id"], {}) if status[RUNS] > 1 else {}
        counted[event["id"]] = status
        done.scanned += status[SCANNED] - before.get(SCANNED, 0)
        steps = status[STEPS] - before.get(STEPS, 0)
        if _only_reads(sql):
            done.read_steps += steps
        else:
            done.steps += steps

    def hook(connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, traced)

    apsw.connection_hooks.append(hook)
    try:
        work()
    finally:
        apsw.connection_hooks.remove(hook)
    done.rows = sum(changes.values())
    return done


def _only_reads(sql: str) -> bool:
    code = [line for line in sql.splitlines() if not line.startswith("--")]
    return " ".join(code).split()[:1] == ["SELECT"]


def size_of(path: Path) -> int:
    """Bytes of the file, with what lies in its WAL."""
    return sum(part.stat().st_size for part in path.parent.glob(f"{path.name}*"))
