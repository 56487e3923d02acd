"""What Podman reports, and what it means: the table of all that was seen."""

from __future__ import annotations

import pytest

from holdfast.errors import RuntimeTrouble
from holdfast.ports.box import BoxExit, BoxState, Sight
from holdfast.runners.container.inspect import (
    ContainerState,
    Reading,
    decode_listing,
    decode_report,
    read_state,
)

NEVER = "0001-01-01T00:00:00Z"
START = "2026-11-17T18:04:53.122492734Z"
SOON = "2026-11-17T18:04:53.118124237Z"
END = "2026-11-17T20:04:55.5+02:00"
LONG_BEFORE = "2026-11-17T17:00:00Z"


def report(status: str, started: str, finished: str, code: int = 0, oom: str = "false") -> bytes:
    return (
        f'[{{"Id": "ab12", "State": {{"Status": "{status}", "Pid": 12, "ConmonPid": 11,'
        f' "ExitCode": {code}, "StartedAt": "{started}", "FinishedAt": "{finished}",'
        f' "OOMKilled": {oom}, "Health": {{"Log": null}}}}}}]'
    ).encode()


def read(
    text: bytes, *, process: bool = False, monitor: bool = False, mark: bool = False
) -> Reading:
    return read_state(
        decode_report(text), process_alive=process, monitor_alive=monitor, oom_mark=mark
    )


CREATED = Reading(Sight(BoxState.CREATED))
LOST = Reading(Sight(BoxState.LOST))
UNSETTLED = Reading(Sight(BoxState.LOST), settled=False)


def exited(code: int, *, oom: bool = False) -> Reading:
    return Reading(Sight(BoxState.EXITED, BoxExit(code=code, out_of_memory=oom)))


@pytest.mark.parametrize(
    ("status", "started", "finished", "code", "meaning"),
    [
        pytest.param("created", NEVER, NEVER, 0, CREATED, id="never started"),
        pytest.param("initialized", NEVER, NEVER, 0, CREATED, id="a start that was cut off"),
        pytest.param("created", START, NEVER, 0, LOST, id="running when the host rebooted"),
        pytest.param("exited", START, NEVER, 0, LOST, id="exited without an end"),
        pytest.param("stopped", START, NEVER, 0, LOST, id="stopped without an end"),
        pytest.param("exited", NEVER, END, 0, LOST, id="an end without a start"),
        pytest.param("exited", NEVER, NEVER, 0, LOST, id="exited without start and end"),
        pytest.param("exited", START, LONG_BEFORE, 0, LOST, id="the end of an earlier run"),
        pytest.param("stopped", START, END, -1, LOST, id="killed after its monitor died"),
        pytest.param("removing", START, END, 0, UNSETTLED, id="being removed"),
        pytest.param("removing", NEVER, NEVER, 0, LOST, id="being removed, never started"),
        pytest.param("unknown", START, NEVER, 0, UNSETTLED, id="a state of another version"),
        pytest.param("exited", START, END, 0, exited(0), id="exited"),
        pytest.param("exited", START, END, 125, exited(125), id="exited with 125"),
        pytest.param("stopped", START, END, 7, exited(7), id="ended, and not yet cleaned up"),
        pytest.param("exited", START, SOON, 3, exited(3), id="a quick end, dated before its start"),
    ],
)
def test_an_exit_code_counts_only_if_the_end_was_seen(
    status: str, started: str, finished: str, code: int, meaning: Reading
) -> None:
    assert read(report(status, started, finished, code)) == meaning


@pytest.mark.parametrize(
    ("process", "monitor", "meaning"),
    [
        (True, True, Reading(Sight(BoxState.RUNNING))),
        (True, False, UNSETTLED),
        (False, True, UNSETTLED),
        (False, False, UNSETTLED),
    ],
)
@pytest.mark.parametrize("status", ["running", "paused", "stopping"])
def test_a_running_box_has_a_process_and_a_monitor(
    status: str, process: bool, monitor: bool, meaning: Reading
) -> None:
    assert read(report(status, START, NEVER), process=process, monitor=monitor) == meaning


def test_out_of_memory_is_known_by_the_mark_or_by_podmans_word() -> None:
    ended = report("exited", START, END, 137)
    assert read(ended) == exited(137)
    assert read(ended, mark=True) == exited(137, oom=True)
    assert read(report("exited", START, END, 137, "true")) == exited(137, oom=True)


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b"[{}]", b"garbage", report("x", "y", "z")])
def test_a_report_that_cannot_be_read_is_trouble(text: bytes) -> None:
    with pytest.raises(RuntimeTrouble):
        decode_report(text)


def test_a_listing_may_be_empty() -> None:
    assert decode_listing(b"") == decode_listing(b"[]") == []
    with pytest.raises(RuntimeTrouble):
        decode_listing(b"garbage")


def test_fields_that_a_version_leaves_out_have_a_default() -> None:
    text = (
        b'[{"State": {"Status": "created", "ExitCode": 0, "StartedAt": "%s", "FinishedAt": "%s"}}]'
    )
    state = decode_report(text.replace(b"%s", NEVER.encode()))
    assert isinstance(state, ContainerState)
    assert (state.pid, state.conmon_pid, state.oom_killed) == (0, 0, False)
