"""Instructions per job: what is counted of what callgrind writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.instructions import CountedCluster


class Written(CountedCluster):
    """A cluster that is only a directory."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory

    @property
    def directory(self) -> Path:
        return self._directory


@pytest.fixture
def cluster(tmp_path: Path) -> Written:
    return Written(tmp_path)


def test_statements_that_write_rows_are_counted_once(cluster: Written) -> None:
    (cluster.directory / "callgrind.7.1").write_text("fn=(1) ExecConstraints\ntotals: 1200\n")
    (cluster.directory / "callgrind.7.2").write_text("fn=(1) ExecConstraints\ntotals: 30\n")
    assert sorted(cluster.take_counts()) == [30, 1200]
    assert cluster.take_counts() == []


def test_what_services_read_beside_is_not_counted(cluster: Written) -> None:
    (cluster.directory / "callgrind.8.1").write_text("fn=(1) ExecScan\ntotals: 4600000\n")
    assert cluster.take_counts() == []


def test_the_server_writes_a_file_before_each_answer(cluster: Written) -> None:
    assert "--dump-before=ReadyForQuery" in cluster.under
