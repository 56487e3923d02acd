"""What Podman reports about a container, read with distrust: pure.

Podman shows exit code 0 for containers that never ran, that a reboot cut off and whose monitor was
killed, and dates the end of a quick command before its start. An exit code counts only where the
container was seen to end.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
from msgspec import Struct, field

from holdfast.errors import RuntimeTrouble
from holdfast.ports.box import BoxExit, BoxState, Sight

_NEVER = datetime(2, 1, 1, tzinfo=UTC)
"""Podman writes a time that was never set as the first of January of the year 1."""
_ENDED = frozenset({"exited", "stopped"})
_UNSTARTED = frozenset({"configured", "created", "initialized"})
_SKEW = timedelta(seconds=60)
"""How much earlier than its start an end may be dated.

The start is dated once Podman has been answered, the end by the coarse clock of a file: a quick
command ends milliseconds, on a busy host seconds before it has started. What is older than a call
of Podman may last is the end of another run.
"""


class ContainerState(Struct, frozen=True, rename="pascal"):
    """The part of Podman's report that matters here."""

    status: str
    started_at: datetime
    finished_at: datetime
    exit_code: int
    pid: int = 0
    conmon_pid: int = 0
    oom_killed: bool = field(default=False, name="OOMKilled")


class ContainerReport(Struct, frozen=True, rename="pascal"):
    """One container of Podman's report."""

    state: ContainerState


class ListedContainer(Struct, frozen=True, rename="pascal"):
    """One container of Podman's listing."""

    names: list[str]
    labels: dict[str, str] | None = None


class Reading(Struct, frozen=True):
    """What a report means. One that is not settled may be outdated: read again."""

    sight: Sight
    settled: bool = True


def decode_report(text: bytes) -> ContainerState:
    """Return the state in the answer of `podman container inspect`."""
    try:
        (container,) = msgspec.json.decode(text, type=list[ContainerReport])
    except (msgspec.MsgspecError, ValueError) as error:
        raise RuntimeTrouble(f"podman's report cannot be read: {error}") from error
    return container.state


def decode_listing(text: bytes) -> list[ListedContainer]:
    """Return the containers in the answer of `podman ps --format json`."""
    try:
        return msgspec.json.decode(text or b"[]", type=list[ListedContainer])
    except msgspec.MsgspecError as error:
        raise RuntimeTrouble(f"podman's listing cannot be read: {error}") from error


def read_state(
    state: ContainerState, *, process_alive: bool, monitor_alive: bool, oom_mark: bool
) -> Reading:
    """Return what a report means, given whether the processes that it names are alive.

    They must have been looked at after the report was made. `oom_mark` is whether the monitor left
    its mark that the kernel killed a process for memory.
    """
    if state.started_at < _NEVER:
        never_ran = state.status in _UNSTARTED
        return Reading(Sight(BoxState.CREATED if never_ran else BoxState.LOST))
    if state.status in _ENDED:
        return Reading(_read_end(state, oom_mark))
    if state.status in _UNSTARTED:
        return Reading(Sight(BoxState.LOST))
    if process_alive and monitor_alive:
        return Reading(Sight(BoxState.RUNNING))
    # Between the end of a process and the record of its exit code it looks the same.
    return Reading(Sight(BoxState.LOST), settled=False)


def _read_end(state: ContainerState, oom_mark: bool) -> Sight:
    was_seen = state.finished_at > max(_NEVER, state.started_at - _SKEW)
    # Podman writes -1 where it gave up waiting for a monitor that is dead.
    if not was_seen or state.exit_code < 0:
        return Sight(BoxState.LOST)
    exit = BoxExit(code=state.exit_code, out_of_memory=oom_mark or state.oom_killed)
    return Sight(BoxState.EXITED, exit)
