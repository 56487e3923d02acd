"""The power-cut harness finds lost commits where there are some, and none where there are none.

On a plain table and without any of our code: what SQLite promises for synchronous=FULL holds in
every crash image, and what it does not promise for NORMAL is seen to be lost.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import apsw
import pytest

from tests.support.disk_model import Create, Loss, Sync
from tests.support.power_cut import CrashImage, Recording, crash_images

COMMITS = 300
SEED = 20


def record_commits(directory: Path, synchronous: str, journal_mode: str = "wal") -> Recording:
    """Small commits in one table, each marked when acknowledged, with many checkpoints between."""
    with Recording() as recording:
        database = apsw.Connection(str(directory / "jobs.db"), vfs=recording.vfs_name)
        database.pragma("journal_mode", journal_mode)
        database.pragma("synchronous", synchronous)
        database.pragma("wal_autocheckpoint", 20)
        database.execute("CREATE TABLE commits (number INTEGER PRIMARY KEY, body TEXT)")
        for number in range(COMMITS):
            body = "x" * (number * 37 % 1500)
            database.execute("INSERT INTO commits VALUES (?, ?)", (number, body))
            recording.mark(str(number))
        database.close()
    return recording


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a database opened after the cut holds, next to what had been acknowledged."""

    image: CrashImage
    acknowledged: list[int]
    intact: bool
    commits: list[int]

    @property
    def lost(self) -> set[int]:
        return set(self.acknowledged) - set(self.commits)


def reopened(recording: Recording, directory: Path, *, cuts: int = 150) -> Iterator[Found]:
    for image in crash_images(recording, SEED, directory=directory / "images", cuts=cuts):
        yield inspect(image)


def inspect(image: CrashImage) -> Found:
    database = apsw.Connection(str(image.database))
    try:
        intact, commits = read(database)
    except (apsw.CorruptError, apsw.NotADBError):
        intact, commits = False, []
    finally:
        database.close()
    acknowledged = [int(label) for label in image.marks]
    return Found(image=image, acknowledged=acknowledged, intact=intact, commits=commits)


def read(database: apsw.Connection) -> tuple[bool, list[int]]:
    intact = database.pragma("integrity_check") == "ok"
    if not database.table_exists(None, "commits"):
        return intact, []
    return intact, [row[0] for row in database.execute("SELECT number FROM commits ORDER BY 1")]


@pytest.mark.parametrize(
    ("journal_mode", "synchronous"), [("wal", "full"), ("truncate", "full"), ("delete", "extra")]
)
def test_what_sqlite_promises_to_keep_is_kept(
    tmp_path: Path, journal_mode: str, synchronous: str
) -> None:
    recording = record_commits(tmp_path, synchronous, journal_mode)
    seen: Counter[Loss] = Counter()
    for found in reopened(recording, tmp_path, cuts=150 if journal_mode == "wal" else 60):
        assert found.intact, found.image
        assert not found.lost, found.image
        seen[found.image.loss] += 1
    # Each kind of loss had something to lose.
    assert all(seen[loss] > 10 for loss in Loss), seen


def test_an_unsynced_deletion_of_the_journal_brings_the_last_commit_down(tmp_path: Path) -> None:
    # Without WAL, FULL leaves the deletion of the journal unsynced, as SQLite's manual says.
    recording = record_commits(tmp_path, "full", "delete")
    lost = [len(found.lost) for found in reopened(recording, tmp_path, cuts=60)]
    assert set(lost) == {0, 1}


def test_synchronous_normal_loses_acknowledged_commits(tmp_path: Path) -> None:
    recording = record_commits(tmp_path, "normal")
    losses: Counter[Loss] = Counter()
    for found in reopened(recording, tmp_path):
        # Whole commits are lost, from the end: the WAL still keeps their order.
        assert found.intact, found.image
        assert found.commits == list(range(len(found.commits))), found.image
        losses[found.image.loss] += bool(found.lost)
    assert losses[Loss.LOST] > 50
    assert losses[Loss.RANDOM] > 10
    assert losses[Loss.KEPT] == 0


def test_synchronous_off_is_seen_to_corrupt_the_database(tmp_path: Path) -> None:
    recording = record_commits(tmp_path, "off")
    assert not all(found.intact for found in reopened(recording, tmp_path))


def test_checkpoints_are_part_of_the_recording(tmp_path: Path) -> None:
    recording = record_commits(tmp_path, "full")
    created = [o for o in recording.operations if isinstance(o, Create)]
    main = next(o.file for o in created if o.name == recording.main_name)
    syncs = [o for o in recording.operations if isinstance(o, Sync) and o.file == main]
    assert len(syncs) > 10


def test_a_seed_gives_the_same_images_again(tmp_path: Path) -> None:
    recording = record_commits(tmp_path, "normal")

    def contents(name: str) -> list[dict[str, bytes]]:
        images = crash_images(recording, SEED, directory=tmp_path / name, cuts=10)
        return [{f.name: f.read_bytes() for f in i.directory.iterdir()} for i in images]

    assert contents("first") == contents("second")


def test_what_was_there_before_the_recording_is_durable(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    before = apsw.Connection(str(path))
    before.execute("CREATE TABLE commits (number INTEGER PRIMARY KEY)")
    before.execute("INSERT INTO commits VALUES (7)")
    before.close()
    with Recording() as recording:
        database = apsw.Connection(str(path), vfs=recording.vfs_name)
        database.pragma("journal_mode", "wal")
        database.pragma("synchronous", "off")
        database.execute("INSERT INTO commits VALUES (8)")
        database.close()
    images = crash_images(recording, SEED, directory=tmp_path, losses=[Loss.LOST])
    assert all(inspect(image).commits == [7] for image in images)
