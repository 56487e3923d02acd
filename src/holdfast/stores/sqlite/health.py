"""What can be wrong with a SQLite file and the disk that it lies on.

differs from postgres: the disk can be seen, a server and its settings are not there.
"""

from __future__ import annotations

import os
from pathlib import Path

import apsw

from holdfast.errors import HoldfastError
from holdfast.stores.findings import (
    Finding,
    fine,
    judge_disk,
    judge_migrations,
    megabytes,
    problem,
)
from holdfast.stores.sqlite.connections import SqlitePlace, connect, translate_error
from holdfast.stores.sqlite.migrate import latest, read_last_migration, read_needed_version

OVER_THE_NETWORK = frozenset({"9p", "afs", "ceph", "cifs", "fuse.sshfs", "nfs", "nfs4", "smb3"})
"""File systems over which SQLite's shared memory does not reach: two machines would corrupt it."""


def examine(path: str) -> list[Finding]:
    """Look at a file without changing it."""
    place = SqlitePlace.of(path, deadline_seconds=5.0)
    if place.in_memory:
        return [fine("database", "SQLite in memory; it ends with its process")]
    file = Path(place.path)
    if not file.is_file() or not file.stat().st_size:
        return [
            problem(
                "database",
                f"there is no store at {place.path}",
                "run `holdfast migrate` or `holdfast up`, or name another place by --url",
            )
        ]
    return [*_examine_database(place), _examine_disk(file), *_examine_file_system(file)]


def _examine_database(place: SqlitePlace) -> list[Finding]:
    fix = "see that this user may read and write the file and its directory"
    if not os.access(place.path, os.R_OK | os.W_OK):
        return [problem("database", f"{place.path} may not be read and written", fix)]
    try:
        connection = connect(place, writes=False)
    except apsw.Error as error:
        return [problem("database", str(translate_error(error)), fix)]
    except HoldfastError as error:
        return [problem("database", str(error), fix)]
    try:
        size = megabytes(os.path.getsize(place.path))
        version = f"SQLite {apsw.sqlite_lib_version()}"
        return [
            fine("database", f"{place.path}, {size}, {version}"),
            judge_migrations(
                read_last_migration(connection), latest(), read_needed_version(connection)
            ),
        ]
    except apsw.Error as error:
        restore = "restore a backup (docs/operate.md), then run `holdfast verify`"
        return [
            problem("database", f"{place.path} cannot be read: {translate_error(error)}", restore)
        ]
    finally:
        connection.close()


def _examine_disk(file: Path) -> Finding:
    fix = "make room, keep jobs for a shorter time (--keep), or move the file to a larger disk"
    return judge_disk("disk", file.parent, fix)


def _examine_file_system(file: Path) -> list[Finding]:
    kind = find_file_system(file, Path("/proc/self/mounts"))
    if kind not in OVER_THE_NETWORK:
        return []
    text = f"{file} lies on a network file system ({kind}), where SQLite's locks do not hold"
    return [problem("disk", text, "move it to a local disk, or use PostgreSQL")]


def find_file_system(file: Path, mounts: Path) -> str | None:
    """Return which kind of file system a file lies on; None where that cannot be known."""
    try:
        lines = mounts.read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    places = {
        fields[1].replace("\\040", " "): fields[2] for line in lines if (fields := line.split())
    }
    return next((places[str(one)] for one in file.parents if str(one) in places), None)
