"""Runtimes of boxes that are subtly wrong, each in one way: a wrapper around one that is right.

Each names the tests of the contract that must fail on it.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

from msgspec.structs import replace

from holdfast.errors import BoxLost, HoldfastError
from holdfast.lifecycle.record import JobId
from holdfast.ports.box import (
    LOG_FILE,
    TRUNCATED_FILE,
    Box,
    BoxExit,
    BoxLabel,
    BoxState,
    Sight,
    box_name,
)
from holdfast.runners.bare.boxes import BareBoxes
from holdfast.runners.cgroups import Group
from holdfast.runners.container.podman import Podman
from holdfast.runners.local.boxes import MARK_FILE, LocalBoxes
from holdfast.runners.sandbox.boxes import SandboxBoxes

NOTHING_RUNS = "test_nothing_of_a_command_runs_before_its_start"
PREPARES_TWICE = "test_a_box_may_be_prepared_twice"
EXIT_CODE = "test_the_exit_code_is_the_one_of_the_command"
NOT_RUN = "test_a_program_that_cannot_be_run_ends_with_the_code_of_a_shell"
ARGUMENTS = "test_arguments_reach_the_command_as_they_are"
TERMINATES = "test_terminate_reaches_the_command"
TERMINATES_ENDED = "test_terminate_of_a_command_that_has_ended_does_nothing"
KILLS = "test_a_kill_ends_a_command_that_ignores_requests"
KILLS_SESSIONS = "test_a_kill_reaches_processes_in_sessions_of_their_own"
KILLS_DAEMONS = "test_a_kill_reaches_daemons"
KILLS_FORKS = "test_a_kill_ends_a_loop_of_forks"
KILLS_AGAIN = "test_a_kill_may_be_repeated"
KILLS_ONE = "test_a_kill_leaves_other_boxes_running"
KILLS_EARLY = "test_a_box_that_was_killed_before_its_start_never_starts"
KILLS_UNKNOWN = "test_an_unknown_box_that_was_killed_never_starts"
NOTHING_LEFT = "test_nothing_is_left_of_a_command_that_ended_by_itself"
CANCELLED_WAIT = "test_a_wait_that_is_cancelled_leaves_the_box_alone"
LOOKS = "test_a_look_shows_the_state_of_a_box"
STARTS_ONCE = "test_a_box_never_starts_twice"
LISTS = "test_a_box_is_listed_with_its_labels_until_it_is_removed"
REMOVES = "test_removing_is_repeatable_and_kills_what_runs"
LOGS = "test_output_is_logged_with_time_and_stream_in_order"
LOGS_LIVE = "test_output_is_in_the_log_while_the_command_runs"
CAPS = "test_the_first_bytes_of_output_are_kept_and_the_command_goes_on"
LONG_LINE = "test_a_line_without_an_end_is_kept_in_pieces"
BINARY = "test_binary_output_is_kept_byte_by_byte"
ENVIRONMENT = "test_the_environment_is_exactly_what_was_given"
DIRECTORIES = "test_a_command_reads_its_work_and_writes_its_artifacts"
STARTS_NO_OTHERS = "test_another_instance_never_starts_what_has_run"
PROMISES = "test_a_runtime_is_tested_for_what_it_promises"
AGENT_FILES = "test_an_agent_finds_its_directories_by_their_variables"
AGENT_MODE = "test_an_agent_cannot_write_to_its_inputs_and_secrets"
WORK_MODE = "test_work_is_writable_for_agents_alone"
HOST_FILES = "test_the_files_of_the_host_are_out_of_reach"
MEMORY = "test_running_out_of_memory_is_distinguished_from_other_kills"
MEMORY_OF_ATTEMPT = "test_an_attempt_does_not_inherit_what_happened_to_an_earlier_one"
FINDS = "test_another_instance_finds_kills_and_removes_a_box"
SURVIVES = "test_a_box_runs_on_when_its_instance_is_closed"
LATE_EXIT = "test_another_instance_observes_an_exit_that_nobody_waited_for"
CLOSES = "test_nothing_is_left_of_boxes_that_are_closed"


class WrappedBoxes:
    """Hands everything on to the good runtime; a defect overrides what it gets wrong."""

    caught_by: ClassVar[tuple[str, ...]] = ()
    wraps: ClassVar[type[BareBoxes | SandboxBoxes]] = BareBoxes

    def __init__(self, inner: LocalBoxes) -> None:
        self.inner = inner
        self.left: list[asyncio.Task[Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def repair(self) -> None:
        """Undo what would keep the good runtime from cleaning up."""

    def first_pid(self, box: Box) -> int:
        """Return the outermost process of a box."""
        process = self.inner._boxes[box.name].process
        assert process is not None
        return process._process.pid


class WrappedSandboxes(WrappedBoxes):
    wraps = SandboxBoxes


class WrappedPodman:
    """The same for containers, which survive."""

    caught_by: ClassVar[tuple[str, ...]] = ()

    def __init__(self, inner: Podman) -> None:
        self.inner = inner
        self.started: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    async def start(self, box: Box) -> None:
        await self.inner.start(box)
        self.started.add(box.name)


class StartsWhenItPrepares(WrappedBoxes):
    caught_by = (NOTHING_RUNS,)

    async def prepare(self, box: Box) -> None:
        await self.inner.prepare(box)
        with suppress(HoldfastError):
            await self.inner.start(box)


class RefusesToPrepareTwice(WrappedBoxes):
    caught_by = (PREPARES_TWICE,)

    async def prepare(self, box: Box) -> None:
        assert box.name not in self.inner._boxes
        await self.inner.prepare(box)


class ReportsSuccessWhereItKnowsNothing(WrappedBoxes):
    """As podman does for a container that was only created."""

    caught_by = (EXIT_CODE, NOT_RUN)

    async def wait(self, box: Box) -> BoxExit:
        await self.inner.wait(box)
        return BoxExit(code=0)


class ReportsSignalsAsPythonDoes(WrappedBoxes):
    caught_by = (EXIT_CODE, KILLS)

    async def wait(self, box: Box) -> BoxExit:
        exit = await self.inner.wait(box)
        return replace(exit, code=128 - exit.code) if exit.code > 128 else exit


class TakesEveryFailureFor125(WrappedBoxes):
    caught_by = (NOT_RUN, EXIT_CODE)

    async def wait(self, box: Box) -> BoxExit:
        exit = await self.inner.wait(box)
        return replace(exit, code=125) if exit.code in (126, 127) else exit


class JoinsTheArguments(WrappedBoxes):
    caught_by = (ARGUMENTS,)

    async def prepare(self, box: Box) -> None:
        await self.inner.prepare(replace(box, argv=("/bin/sh", "-c", " ".join(box.argv))))


class TerminatesTheOuterProcess(WrappedBoxes):
    caught_by = (TERMINATES,)

    async def terminate(self, box: Box) -> None:
        os.kill(self.first_pid(box), signal.SIGTERM)


class TerminatesNothing(WrappedBoxes):
    caught_by = (TERMINATES,)

    async def terminate(self, box: Box) -> None:
        pass


class FailsToTerminateWhatHasEnded(WrappedBoxes):
    caught_by = (TERMINATES_ENDED,)

    async def terminate(self, box: Box) -> None:
        os.kill(self.first_pid(box), signal.SIGTERM)


class KillsByRequest(WrappedBoxes):
    caught_by = (KILLS,)

    async def kill(self, box: Box) -> None:
        await self.inner.terminate(box)


class ReturnsBeforeItIsDead(WrappedBoxes):
    caught_by = (KILLS, KILLS_FORKS, KILLS_AGAIN)

    async def kill(self, box: Box) -> None:
        self.left.append(asyncio.create_task(self._kill_later(box)))

    async def _kill_later(self, box: Box) -> None:
        await asyncio.sleep(0.1)
        await self.inner.kill(box)


class _BlindGroup(Group):
    """Takes in processes, and sees none of them."""

    def __init__(self, real: Group | None) -> None:
        assert real is not None
        self.real = real

    def doors(self) -> list[Path]:
        return self.real.doors()

    async def emptied(self, seconds: float) -> bool:
        return True

    def ran_out_of_memory(self) -> bool:
        return False


class KillsTheGroupOfProcesses(WrappedBoxes):
    """What left the group lives on: there is no namespace, and nobody looks."""

    caught_by = (KILLS_SESSIONS, KILLS_DAEMONS, NOTHING_LEFT)

    def __init__(self, inner: BareBoxes) -> None:
        super().__init__(inner)
        inner._trouble = "no namespace"

    async def prepare(self, box: Box) -> None:
        await self.inner.prepare(box)
        local = self.inner._boxes[box.name]
        local.group = _BlindGroup(local.group)

    def repair(self) -> None:
        for local in self.inner._boxes.values():
            local.group = getattr(local.group, "real", local.group)

    async def kill(self, box: Box) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.first_pid(box), signal.SIGKILL)


class FailsToKillTwice(WrappedBoxes):
    caught_by = (KILLS_AGAIN,)

    async def kill(self, box: Box) -> None:
        os.kill(self.first_pid(box), 0)
        await self.inner.kill(box)


class KillsEverything(WrappedBoxes):
    caught_by = (KILLS_ONE,)

    async def kill(self, box: Box) -> None:
        for each in list(self.inner._boxes.values()):
            await self.inner.kill(each.box)


class ForgetsAKillBeforeTheStart(WrappedBoxes):
    caught_by = (KILLS_EARLY, KILLS_UNKNOWN)

    async def kill(self, box: Box) -> None:
        await self.inner.kill(box)
        if self.inner._boxes.get(box.name) is None or not self.inner._boxes[box.name].process:
            (box.directory / MARK_FILE).unlink()


class FailsToKillWhatItDoesNotKnow(WrappedBoxes):
    caught_by = (KILLS_UNKNOWN,)

    async def kill(self, box: Box) -> None:
        assert box.name in self.inner._boxes
        await self.inner.kill(box)


class KillsWhenAWaitIsCancelled(WrappedBoxes):
    caught_by = (CANCELLED_WAIT,)

    async def wait(self, box: Box) -> BoxExit:
        try:
            return await self.inner.wait(box)
        except asyncio.CancelledError:
            await self.inner.kill(box)
            raise


class LooksOnlyIntoItsList(WrappedBoxes):
    caught_by = (LOOKS, NOTHING_RUNS)

    async def look(self, box: Box) -> Sight:
        sight = await self.inner.look(box)
        return Sight(BoxState.RUNNING) if sight.state == BoxState.CREATED else sight


class TakesWhatWasCreatedForExited(WrappedBoxes):
    """As podman reports exit code 0 for a container that never ran."""

    caught_by = (LOOKS, NOTHING_RUNS)

    async def look(self, box: Box) -> Sight:
        sight = await self.inner.look(box)
        never_ran = sight.state == BoxState.CREATED
        return Sight(BoxState.EXITED, BoxExit(code=0)) if never_ran else sight


class StartsWhatHasRun(WrappedBoxes):
    caught_by = (STARTS_ONCE, STARTS_NO_OTHERS, FINDS)

    async def start(self, box: Box) -> None:
        (box.directory / MARK_FILE).unlink(missing_ok=True)
        await self.inner.prepare(box)
        await self.inner.start(box)


class ListsWithoutTheEpoch(WrappedBoxes):
    caught_by = (LISTS,)

    async def list(self) -> Sequence[BoxLabel]:
        return [replace(label, epoch=0) for label in await self.inner.list()]


class ListsOnlyWhatItStarted(WrappedBoxes):
    caught_by = (FINDS,)

    async def list(self) -> Sequence[BoxLabel]:
        return [each for each in await self.inner.list() if each.name in self.inner._boxes]


class RemovesNothing(WrappedBoxes):
    caught_by = (LISTS, REMOVES)

    async def remove(self, job: JobId, attempt: int) -> None:
        pass


class FailsToRemoveTwice(WrappedBoxes):
    caught_by = (REMOVES,)

    async def remove(self, job: JobId, attempt: int) -> None:
        assert box_name(job, attempt) in self.inner._boxes
        await self.inner.remove(job, attempt)


class ChangesTheLog(WrappedBoxes):
    """Replaces the log of a box once it has ended."""

    def changed(self, log: bytes) -> bytes:
        """Return what stays of it."""
        raise NotImplementedError

    async def wait(self, box: Box) -> BoxExit:
        exit = await self.inner.wait(box)
        log = box.directory / LOG_FILE
        log.write_bytes(self.changed(log.read_bytes()))
        return exit


class WritesNoLog(ChangesTheLog):
    caught_by = (LOGS, BINARY)

    def changed(self, log: bytes) -> bytes:
        return b""


class TakesErrorsForOutput(ChangesTheLog):
    caught_by = (LOGS,)

    def changed(self, log: bytes) -> bytes:
        return log.replace(b" stderr ", b" stdout ")


class DropsWhatHasNoNewline(ChangesTheLog):
    caught_by = (LOGS,)

    def changed(self, log: bytes) -> bytes:
        return b"".join(line for line in log.splitlines(keepends=True) if b" P " not in line)


class ReplacesWhatIsNotText(ChangesTheLog):
    caught_by = (BINARY,)

    def changed(self, log: bytes) -> bytes:
        return log.decode(errors="replace").encode()


class JoinsThePieces(ChangesTheLog):
    caught_by = (LONG_LINE,)

    def changed(self, log: bytes) -> bytes:
        texts = b"".join(line.split(b" P ", 1)[-1] for line in log.split(b"\n")[:-1])
        return log[:50].partition(b" stdout ")[0] + b" stdout F " + texts + b"\n"


class KeepsTheLastBytes(ChangesTheLog):
    caught_by = (CAPS,)

    def changed(self, log: bytes) -> bytes:
        return log[len(log) // 2 :].partition(b"\n")[2]


class WritesTheLogAtTheEnd(WrappedBoxes):
    caught_by = (LOGS_LIVE,)

    async def start(self, box: Box) -> None:
        await self.inner.start(box)
        hidden = box.directory / "hidden"
        (box.directory / LOG_FILE).rename(hidden)


class KeepsAllOutput(WrappedBoxes):
    caught_by = (CAPS, LONG_LINE)

    async def prepare(self, box: Box) -> None:
        await self.inner.prepare(replace(box, log_bytes=1 << 30))


class ForgetsTheMarkOfALostEnd(WrappedBoxes):
    caught_by = (CAPS,)

    async def wait(self, box: Box) -> BoxExit:
        exit = await self.inner.wait(box)
        (box.directory / TRUNCATED_FILE).unlink(missing_ok=True)
        return exit


class StopsTheCommandAtTheLimit(WrappedBoxes):
    caught_by = (CAPS,)

    async def start(self, box: Box) -> None:
        await self.inner.start(box)
        self.left.append(asyncio.create_task(self._kill_at_limit(box)))

    async def _kill_at_limit(self, box: Box) -> None:
        while not (box.directory / TRUNCATED_FILE).exists():  # noqa: ASYNC110  a file
            await asyncio.sleep(0.001)
        await self.inner.kill(box)


class PassesItsOwnEnvironment(WrappedBoxes):
    caught_by = (ENVIRONMENT,)

    async def prepare(self, box: Box) -> None:
        await self.inner.prepare(replace(box, env={**os.environ, **box.env}))


class DropsTheEnvironment(WrappedBoxes):
    caught_by = (ENVIRONMENT,)

    async def prepare(self, box: Box) -> None:
        await self.inner.prepare(replace(box, env={}))


class StartsInItsOwnDirectory(WrappedBoxes):
    caught_by = (DIRECTORIES,)

    async def prepare(self, box: Box) -> None:
        await self.inner.prepare(replace(box, work=Path("/")))


class ClaimsToIsolate(WrappedBoxes):
    caught_by = (PROMISES, WORK_MODE, AGENT_MODE, HOST_FILES)
    isolated = True


class ClaimsToSurvive(WrappedBoxes):
    caught_by = (PROMISES, FINDS)
    survives = True


class ForgetsTheExchange(WrappedSandboxes):
    caught_by = (AGENT_FILES,)

    async def prepare(self, box: Box) -> None:
        await self.inner.prepare(replace(box, exchange=None))


class MountsTheWorkWritable(WrappedSandboxes):
    caught_by = (WORK_MODE,)

    async def prepare(self, box: Box) -> None:
        await self.inner.prepare(replace(box, work_writable=True))


class NeverMountsTheWorkWritable(WrappedSandboxes):
    caught_by = (WORK_MODE,)

    async def prepare(self, box: Box) -> None:
        await self.inner.prepare(replace(box, work_writable=False))


class TakesEvery137ForMemory(WrappedBoxes):
    caught_by = (EXIT_CODE, MEMORY)

    async def wait(self, box: Box) -> BoxExit:
        exit = await self.inner.wait(box)
        return replace(exit, out_of_memory=exit.code == 137)


class NeverReportsMemory(WrappedBoxes):
    caught_by = (MEMORY,)

    async def wait(self, box: Box) -> BoxExit:
        return replace(await self.inner.wait(box), out_of_memory=False)


class RemembersMemoryOfAnEarlierAttempt(WrappedBoxes):
    caught_by = (MEMORY_OF_ATTEMPT,)
    marked: ClassVar[set[JobId]] = set()

    async def wait(self, box: Box) -> BoxExit:
        exit = await self.inner.wait(box)
        if exit.out_of_memory:
            self.marked.add(box.job)
        return replace(exit, out_of_memory=box.job in self.marked)


class ForgetsWhatRan(WrappedBoxes):
    caught_by = (FINDS,)

    async def look(self, box: Box) -> Sight:
        sight = await self.inner.look(box)
        return Sight(BoxState.ABSENT) if sight.state == BoxState.LOST else sight


class LeavesBoxesRunning(WrappedBoxes):
    caught_by = (CLOSES,)

    async def close(self) -> None:
        pass


class KillsNothingOfOthers(WrappedBoxes):
    caught_by = (FINDS,)

    async def kill(self, box: Box) -> None:
        if box.name in self.inner._boxes:
            await self.inner.kill(box)


class KillsBoxesWhenItCloses(WrappedPodman):
    caught_by = (SURVIVES,)

    async def close(self) -> None:
        for label in await self.inner.list():
            await self.inner.remove(label.job, label.attempt)


class TakesBoxesOfOthersForLost(WrappedPodman):
    caught_by = (SURVIVES, FINDS)

    async def look(self, box: Box) -> Sight:
        sight = await self.inner.look(box)
        return sight if box.name in self.started else Sight(BoxState.LOST)


class WaitsOnlyForWhatItStarted(WrappedPodman):
    caught_by = (SURVIVES, LATE_EXIT)

    async def wait(self, box: Box) -> BoxExit:
        if box.name not in self.started:
            raise BoxLost("another has started it")
        return await self.inner.wait(box)


class TakesAnExitOfOthersForSuccess(WrappedPodman):
    caught_by = (LATE_EXIT,)

    async def wait(self, box: Box) -> BoxExit:
        exit = await self.inner.wait(box)
        return exit if box.name in self.started else BoxExit(code=0)


DEFECTS = (
    StartsWhenItPrepares,
    RefusesToPrepareTwice,
    ReportsSuccessWhereItKnowsNothing,
    ReportsSignalsAsPythonDoes,
    TakesEveryFailureFor125,
    JoinsTheArguments,
    TerminatesTheOuterProcess,
    TerminatesNothing,
    FailsToTerminateWhatHasEnded,
    KillsByRequest,
    ReturnsBeforeItIsDead,
    KillsTheGroupOfProcesses,
    FailsToKillTwice,
    KillsEverything,
    ForgetsAKillBeforeTheStart,
    FailsToKillWhatItDoesNotKnow,
    KillsWhenAWaitIsCancelled,
    LooksOnlyIntoItsList,
    TakesWhatWasCreatedForExited,
    StartsWhatHasRun,
    ListsWithoutTheEpoch,
    ListsOnlyWhatItStarted,
    RemovesNothing,
    FailsToRemoveTwice,
    WritesNoLog,
    TakesErrorsForOutput,
    DropsWhatHasNoNewline,
    ReplacesWhatIsNotText,
    JoinsThePieces,
    KeepsTheLastBytes,
    WritesTheLogAtTheEnd,
    KeepsAllOutput,
    ForgetsTheMarkOfALostEnd,
    StopsTheCommandAtTheLimit,
    PassesItsOwnEnvironment,
    DropsTheEnvironment,
    StartsInItsOwnDirectory,
    ClaimsToIsolate,
    ClaimsToSurvive,
    MountsTheWorkWritable,
    NeverMountsTheWorkWritable,
    ForgetsTheExchange,
    TakesEvery137ForMemory,
    NeverReportsMemory,
    RemembersMemoryOfAnEarlierAttempt,
    ForgetsWhatRan,
    LeavesBoxesRunning,
    KillsNothingOfOthers,
)
PODMAN_DEFECTS = (
    KillsBoxesWhenItCloses,
    TakesBoxesOfOthersForLost,
    WaitsOnlyForWhatItStarted,
    TakesAnExitOfOthersForSuccess,
)
