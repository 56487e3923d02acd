"""Process groups: a barrier, results in order, failures with their tracebacks, none left over."""

import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.processes import ProcessesFailed, ProcessGroup, run_together
from tests.support_tests import process_targets


def test_all_are_ready_before_any_starts(tmp_path: Path) -> None:
    arguments = [{"directory": str(tmp_path), "index": index} for index in range(4)]
    with ProcessGroup(process_targets.note_start, arguments) as group:
        assert len(set(group.pids)) == 4
        assert list(tmp_path.iterdir()) == []
        group.go()
        results = group.results()
    assert [result["index"] for result in results] == [0, 1, 2, 3]
    assert len(list(tmp_path.iterdir())) == 4


def test_a_coroutine_function_is_run_too() -> None:
    assert run_together(process_targets.double, [{"number": n} for n in (1, 2, 3)]) == [2, 4, 6]


@pytest.mark.crowd
def test_64_processes_start_within_seconds() -> None:
    begun = time.monotonic()
    results = run_together(process_targets.double, [{"number": n} for n in range(64)])
    assert results == [2 * n for n in range(64)]
    assert time.monotonic() - begun < 30


def test_a_traceback_comes_back_with_the_number_of_its_process() -> None:
    with pytest.raises(ProcessesFailed, match=r"(?s)1 of 2.*process 1.*no luck in 1"):
        run_together(process_targets.fail, [{"index": 0}, {"index": 1}])


def test_a_process_that_just_dies_is_told_by_its_status() -> None:
    with pytest.raises(ProcessesFailed, match="ended with 7"):
        run_together(process_targets.die, [{}])


def test_an_unknown_target_is_told_before_the_start() -> None:
    with pytest.raises(ProcessesFailed, match="no_such_function"):
        run_together("tests.support_tests.process_targets:no_such_function", [{}])


def test_the_limit_ends_all_of_them() -> None:
    with ProcessGroup(process_targets.hang, [{}, {}], limit_seconds=2) as group:
        group.go()
        with pytest.raises(ProcessesFailed, match="not result within the limit"):
            group.results()
    assert not _alive(group.pids)


def test_a_killed_process_has_no_result() -> None:
    with ProcessGroup(process_targets.double, [{"number": 1}, {"number": 2}]) as group:
        group.kill(0)
        group.go()
        assert group.results() == [None, 4]


def _alive(pids: Sequence[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]
