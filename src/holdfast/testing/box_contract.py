"""The contract that every runtime of boxes keeps, as classes of tests with one fixture.

    class TestMyBoxes(IsolatedBoxContract, LimitedBoxContract):
        @pytest_asyncio.fixture
        async def bench(self, tmp_path):
            yield BoxBench(boxes=MyBoxes(…), another=lambda: MyBoxes(…), directory=tmp_path)

A runtime subclasses what it promises, so that no test is ever skipped. Boxes of the contract run
commands of a POSIX shell with the usual small programs (busybox has all of them). Every process of
a command keeps a pipe open, which has a name in its artifacts: that is how a test knows, without
waiting, that nothing of it is left.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Protocol

import pytest
import pytest_asyncio
from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import HoldfastError
from holdfast.ids import mint_id
from holdfast.ports.box import LOG_FILE, TRUNCATED_FILE, Box, Boxes, BoxExit, BoxState, Sight

LIMIT_SECONDS = 60.0
"""How long a test waits for what must come; a healthy runtime needs a fraction of it."""
QUIET_SECONDS = 0.3
"""How long a test watches that something does not happen."""
ARTIFACTS = "${HOLDFAST_ARTIFACTS:-/artifacts}"
"""The artifacts as a command sees them; a runtime without mounts gives their place by variable."""
WORK = "${HOLDFAST_WORK:-/work}"
STARTED = f"exec 9<>{ARTIFACTS}/alive; echo started >>{ARTIFACTS}/lines; "
"""How a command starts: every process of it inherits the open pipe."""
RUN_ON = "while :; do sleep 0.05; done"
EXIT_CODES: Mapping[str, int] = {
    "exit 0": 0,
    "exit 1": 1,
    "exit 42": 42,
    "exit 125": 125,
    "exit 126": 126,
    "exit 127": 127,
    "exit 137": 137,
    "exit 255": 255,
    "exec /": 126,
    "exec no-such-program": 127,
    "kill -SEGV $$": 139,
    "kill -TERM $$": 143,
    "kill -KILL $$": 137,
}
"""Commands and the codes that they end with. A death by signal N is 128+N."""
BOMB = "head -c 400000000 /dev/zero | { echo 1000 > /proc/self/oom_score_adj; exec tail; }"
"""Needs more memory than a box of the contract has: a line without an end is kept whole. The kernel
is asked to kill this process, and not its shell."""
RUNTIME_ENV = {"PATH", "HOME", "PWD", "OLDPWD", "SHLVL", "_", "HOSTNAME", "TERM", "container"}
"""What a runtime or a shell may add to the environment."""
LOG_LINE = re.compile(
    rb"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)) "
    rb"(?P<stream>stdout|stderr) (?P<part>[FP]) (?P<text>.*)",
    re.DOTALL,
)
PIECE_BYTES = 64 * 1024
"""The most of a line that one line of the log may have."""


def _no_other() -> Boxes:
    raise NotImplementedError("the contract needs `another` instance of the runtime")


class BoxBench(Struct, kw_only=True):
    """A runtime under test, and what boxes of it need."""

    boxes: Boxes
    directory: Path
    """Where the directories of boxes are made."""
    image: str | None = None
    """The image of boxes, where the runtime needs one."""
    another: Callable[[], Boxes] = _no_other
    """Returns another instance of the runtime for the same host and store, as of a new worker."""
    left: Callable[[], object] = lambda: None
    """Returns what is left of the runtime after it was closed; false if nothing is."""

    def box(self, command: str) -> Box:
        """Return a box of a shell command, with directories of its own."""
        job = mint_id()
        directory = self.directory / str(job) / "1"
        for each in ("work", "artifacts"):
            (directory / each).mkdir(parents=True)
        os.mkfifo(directory / "artifacts/alive")
        (directory / "artifacts/alive").chmod(0o666)
        return Box(
            job=job,
            attempt=1,
            epoch=7,
            host="host",
            store="contract",
            type="worker",
            argv=("/bin/sh", "-c", command),
            image=self.image,
            cpus=1,
            memory_mb=64,
            pids=128,
            env={},
            work=directory / "work",
            work_writable=False,
            artifacts=directory / "artifacts",
            directory=directory,
        )


def with_exchange(box: Box) -> Box:
    """Return a box as an agent has it: with inputs, secrets and an exchange."""
    for name, file in (("inputs", "task"), ("secrets", "key"), ("exchange", None)):
        directory = box.directory / name
        directory.mkdir(mode=0o700)
        if file is not None:
            (directory / file).write_text(f"{file} ")
            (directory / file).chmod(0o400)
    places = {name: box.directory / name for name in ("inputs", "secrets", "exchange")}
    return replace(box, type="agent", **places)


class BoxTrial:
    """One box under test."""

    def __init__(self, boxes: Boxes, box: Box) -> None:
        """Take a box; nothing is made."""
        self.boxes = boxes
        self.box = box

    async def start(self) -> None:
        """Prepare and start it."""
        async with asyncio.timeout(LIMIT_SECONDS):
            await self.boxes.prepare(self.box)
            await self.boxes.start(self.box)

    async def started(self) -> None:
        """Start it, and wait until its command runs."""
        await self.start()
        await self.wrote("started")
        assert self.is_alive(), "a command of the contract keeps its pipe open while it runs"

    async def wrote(self, line: str) -> None:
        """Wait until its command has written a line."""
        async with asyncio.timeout(LIMIT_SECONDS):
            while line not in self.lines():  # noqa: ASYNC110  a file
                await asyncio.sleep(0.005)

    async def exit(self) -> BoxExit:
        """Wait until it has ended."""
        async with asyncio.timeout(LIMIT_SECONDS):
            return await self.boxes.wait(self.box)

    async def run(self) -> BoxExit:
        """Run it to its end."""
        await self.start()
        return await self.exit()

    async def kill(self) -> None:
        """Kill it."""
        async with asyncio.timeout(LIMIT_SECONDS):
            await self.boxes.kill(self.box)

    async def state(self) -> BoxState:
        """Look at it."""
        return (await self.boxes.look(self.box)).state

    async def is_listed(self) -> bool:
        """Return whether the runtime lists it."""
        return self.box.name in {label.name for label in await self.boxes.list()}

    def lines(self) -> list[str]:
        """Return what its command wrote into its file."""
        file = self.box.artifacts / "lines"
        return file.read_text().splitlines() if file.exists() else []

    def is_alive(self) -> bool:
        """Return whether any process of its command runs: it keeps the pipe open."""
        pipe = os.open(self.box.artifacts / "alive", os.O_RDONLY | os.O_NONBLOCK)
        try:
            return os.read(pipe, 1) != b""
        except BlockingIOError:
            return True
        finally:
            os.close(pipe)

    def log(self) -> list[re.Match[bytes]]:
        """Return the lines of its log, each of which has the format."""
        written = (self.box.directory / LOG_FILE).read_bytes()
        matches = [LOG_LINE.fullmatch(line) for line in written.split(b"\n")[:-1]]
        assert None not in matches, "a line of the log has another format"
        return [each for each in matches if each is not None]

    def output(self, stream: str) -> bytes:
        """Return what one stream wrote, as the log has it, without a newline at its very end.

        Whether a last line without one is logged as a whole or as a piece is left open.
        """
        lines = [each for each in self.log() if each["stream"].decode() == stream]
        ends = {b"F": b"\n", b"P": b""}
        written = b"".join(each["text"] + ends[each["part"]] for each in lines)
        return written.removesuffix(b"\n")


class MakeBoxTrial(Protocol):
    """Makes a trial of a shell command; what differs from an ordinary box is given by field."""

    def __call__(self, command: str, **fields: object) -> BoxTrial:
        """Return it; nothing is made."""


class BoxContract:
    """What every runtime of boxes owes. Subclass it and give it a fixture `bench`."""

    pytestmark = pytest.mark.asyncio

    @pytest_asyncio.fixture
    async def trial(self, bench: BoxBench) -> AsyncIterator[MakeBoxTrial]:
        """What makes boxes; they are removed after the test."""
        made: list[BoxTrial] = []
        yield box_trials(bench, made)
        for each in made:
            await bench.boxes.remove(each.box.job, each.box.attempt)

    async def test_nothing_of_a_command_runs_before_its_start(self, trial: MakeBoxTrial) -> None:
        made = trial(STARTED)
        await made.boxes.prepare(made.box)
        await asyncio.sleep(QUIET_SECONDS)
        assert made.lines() == []
        assert await made.state() == BoxState.CREATED

    async def test_a_box_may_be_prepared_twice(self, trial: MakeBoxTrial) -> None:
        made = trial(STARTED)
        await made.boxes.prepare(made.box)
        assert await made.run() == BoxExit(code=0)
        assert made.lines() == ["started"]

    async def test_the_exit_code_is_the_one_of_the_command(self, trial: MakeBoxTrial) -> None:
        exits = await asyncio.gather(*(trial(command).run() for command in EXIT_CODES))
        found = dict(zip(EXIT_CODES, exits, strict=True))
        assert found == {command: BoxExit(code=code) for command, code in EXIT_CODES.items()}

    async def test_a_program_that_cannot_be_run_ends_with_the_code_of_a_shell(
        self, trial: MakeBoxTrial
    ) -> None:
        programs = ("/", "/no/such/program", "no-such-program")
        exits = await asyncio.gather(*(trial("", argv=(each,)).run() for each in programs))
        assert [exit.code for exit in exits] == [126, 127, 127]

    async def test_arguments_reach_the_command_as_they_are(self, trial: MakeBoxTrial) -> None:
        arguments = ("", "two words", "--", "-n", "$HOME", "new\nline", "é")
        made = trial("", argv=("/bin/sh", "-c", 'printf "%s|" "$@"', "sh", *arguments))
        assert (await made.run()).code == 0
        assert made.output("stdout").decode() == "|".join((*arguments, ""))

    async def test_terminate_reaches_the_command(self, trial: MakeBoxTrial) -> None:
        made = trial(f"trap 'exit 3' TERM; {STARTED}{RUN_ON}")
        await made.started()
        await made.boxes.terminate(made.box)
        assert await made.exit() == BoxExit(code=3)

    async def test_terminate_of_a_command_that_has_ended_does_nothing(
        self, trial: MakeBoxTrial
    ) -> None:
        made = trial("exit 5")
        await made.run()
        await made.boxes.terminate(made.box)
        assert await made.exit() == BoxExit(code=5), "the exit stays what it was"

    async def test_a_kill_ends_a_command_that_ignores_requests(self, trial: MakeBoxTrial) -> None:
        made = trial(f"trap '' TERM INT HUP; {STARTED}{RUN_ON}")
        await made.started()
        await made.boxes.terminate(made.box)
        await made.kill()
        assert not made.is_alive()
        assert (await made.exit()).code == 137

    async def test_a_kill_reaches_processes_in_sessions_of_their_own(
        self, trial: MakeBoxTrial
    ) -> None:
        stubborn = f'trap "" TERM; echo away >>{ARTIFACTS}/lines; sleep 1000'
        made = trial(f"{STARTED} setsid sh -c '{stubborn}' & {RUN_ON}")
        await made.started()
        # Not before it is in a session of its own: until then it is in the group of the first.
        await made.wrote("away")
        await made.kill()
        assert not made.is_alive()

    async def test_a_kill_reaches_daemons(self, trial: MakeBoxTrial) -> None:
        daemon = f"(setsid sh -c 'echo daemon >>{ARTIFACTS}/lines; sleep 1000' &)"
        made = trial(f"{STARTED} {daemon}; {RUN_ON}")
        await made.started()
        await made.wrote("daemon")
        await made.kill()
        assert not made.is_alive()

    async def test_a_kill_ends_a_loop_of_forks(self, trial: MakeBoxTrial) -> None:
        forks = "fork() { sleep 0.01; fork & exit; }; fork & fork & fork & "
        made = trial(f"{STARTED} {forks} {RUN_ON}")
        await made.started()
        await made.kill()
        assert not made.is_alive()

    async def test_a_kill_may_be_repeated(self, trial: MakeBoxTrial) -> None:
        made = trial(f"{STARTED}{RUN_ON}")
        await made.started()
        await asyncio.gather(made.kill(), made.kill())
        await made.kill()
        assert not made.is_alive()
        assert (await made.exit()).code == 137

    async def test_a_kill_leaves_other_boxes_running(self, trial: MakeBoxTrial) -> None:
        killed, other = trial(f"{STARTED}{RUN_ON}"), trial(f"{STARTED}{RUN_ON}")
        await killed.started()
        await other.started()
        await killed.kill()
        assert other.is_alive()
        assert await other.state() == BoxState.RUNNING
        await other.kill()

    async def test_a_box_that_was_killed_before_its_start_never_starts(
        self, trial: MakeBoxTrial
    ) -> None:
        made = trial(STARTED)
        await made.boxes.prepare(made.box)
        await made.kill()
        assert await made.state() != BoxState.RUNNING
        await _refuses_to_start(made)

    async def test_an_unknown_box_that_was_killed_never_starts(self, trial: MakeBoxTrial) -> None:
        made = trial(STARTED)
        await made.kill()
        with pytest.raises(HoldfastError):
            await made.start()
        await asyncio.sleep(QUIET_SECONDS)
        assert made.lines() == []

    async def test_nothing_is_left_of_a_command_that_ended_by_itself(
        self, trial: MakeBoxTrial
    ) -> None:
        made = trial(f"{STARTED} (setsid sleep 1000 &); exit 4")
        assert await made.run() == BoxExit(code=4)
        await made.kill()
        assert not made.is_alive()

    async def test_a_wait_that_is_cancelled_leaves_the_box_alone(self, trial: MakeBoxTrial) -> None:
        made = trial(f"trap 'exit 3' TERM; {STARTED}{RUN_ON}")
        await made.started()
        waiting = asyncio.create_task(made.boxes.wait(made.box))
        await asyncio.sleep(QUIET_SECONDS)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        assert made.is_alive()
        await made.boxes.terminate(made.box)
        assert await made.exit() == BoxExit(code=3)

    async def test_a_look_shows_the_state_of_a_box(self, trial: MakeBoxTrial) -> None:
        made = trial(f"trap 'exit 9' TERM; {STARTED}{RUN_ON}")
        assert await made.state() == BoxState.ABSENT
        await made.boxes.prepare(made.box)
        assert await made.state() == BoxState.CREATED
        await made.started()
        assert await made.state() == BoxState.RUNNING
        await made.boxes.terminate(made.box)
        await made.exit()
        sight = await made.boxes.look(made.box)
        assert (sight.state, sight.exit) == (BoxState.EXITED, BoxExit(code=9))

    async def test_a_box_never_starts_twice(self, trial: MakeBoxTrial) -> None:
        made = trial(f"trap 'exit 0' TERM; {STARTED}{RUN_ON}")
        await made.started()
        await _refuses_to_start(made, lines=["started"])
        await made.boxes.terminate(made.box)
        await made.exit()
        await _refuses_to_start(made, lines=["started"])

    async def test_a_box_is_listed_with_its_labels_until_it_is_removed(
        self, trial: MakeBoxTrial
    ) -> None:
        made = trial("exit 0")
        assert not await made.is_listed()
        await made.run()
        labels = {label.name: label for label in await made.boxes.list()}
        label, box = labels[made.box.name], made.box
        assert (label.job, label.attempt, label.epoch) == (box.job, box.attempt, box.epoch)
        await made.boxes.remove(box.job, box.attempt)
        assert not await made.is_listed()
        assert await made.state() == BoxState.ABSENT

    async def test_removing_is_repeatable_and_kills_what_runs(self, trial: MakeBoxTrial) -> None:
        made, unknown = trial(f"{STARTED}{RUN_ON}"), trial("exit 0")
        await made.started()
        for each in (made, made, unknown):
            await each.boxes.remove(each.box.job, each.box.attempt)
        assert not made.is_alive()
        assert made.box.directory.exists(), "its directory is not the runtime's to remove"

    async def test_output_is_logged_with_time_and_stream_in_order(
        self, trial: MakeBoxTrial
    ) -> None:
        loop = "for i in 1 2 3; do echo out $i; echo err $i >&2; done"
        made = trial(f"{loop}; printf 'no newline'")
        await made.run()
        assert made.output("stdout") == b"out 1\nout 2\nout 3\nno newline"
        assert made.output("stderr") == b"err 1\nerr 2\nerr 3"
        times = [each["time"] for each in made.log() if each["stream"] == b"stdout"]
        assert times == sorted(times)
        assert not (made.box.directory / TRUNCATED_FILE).exists()

    async def test_output_is_in_the_log_while_the_command_runs(self, trial: MakeBoxTrial) -> None:
        made = trial(f"echo first; {STARTED}{RUN_ON}")
        await made.started()
        log = made.box.directory / LOG_FILE
        async with asyncio.timeout(LIMIT_SECONDS):
            while not log.exists() or b"first" not in log.read_bytes():  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        await made.kill()

    async def test_the_first_bytes_of_output_are_kept_and_the_command_goes_on(
        self, trial: MakeBoxTrial
    ) -> None:
        made = trial(f"seq 200000; {STARTED} exit 6", log_bytes=100_000)
        assert await made.run() == BoxExit(code=6)
        assert made.lines() == ["started"], "the command is not affected"
        assert 50_000 < (made.box.directory / LOG_FILE).stat().st_size < 100_000 + PIECE_BYTES
        assert (made.box.directory / TRUNCATED_FILE).exists()
        kept = made.output("stdout").split()
        assert kept[:100] == [str(number).encode() for number in range(1, 101)]

    async def test_a_line_without_an_end_is_kept_in_pieces(self, trial: MakeBoxTrial) -> None:
        made = trial("head -c 20000000 /dev/zero | tr '\\0' x", log_bytes=1_000_000)
        assert await made.run() == BoxExit(code=0)
        log = made.log()
        assert {each["text"].strip(b"x") for each in log} == {b""}
        assert max(len(each["text"]) for each in log) <= PIECE_BYTES
        assert (made.box.directory / LOG_FILE).stat().st_size < 1_000_000 + PIECE_BYTES

    async def test_binary_output_is_kept_byte_by_byte(self, trial: MakeBoxTrial) -> None:
        made = trial(f"head -c 100000 /dev/urandom | tee {ARTIFACTS}/copy; echo")
        assert await made.run() == BoxExit(code=0)
        is_same = made.output("stdout") == (made.box.artifacts / "copy").read_bytes()
        assert is_same, "compared before the assert, which would explain each byte for minutes"

    async def test_the_environment_is_exactly_what_was_given(
        self, trial: MakeBoxTrial, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OF_THE_WORKER", "leaked")
        given = {"TOKEN": "a=b 'c' \"d\" $e\nf", "EMPTY": "", "PATH": "/bin:/usr/bin"}
        made = trial("env | sort; printf '%s' \"$TOKEN\" >&2", env=given)
        await made.run()
        names = {line.partition("=")[0] for line in made.output("stdout").decode().splitlines()}
        names = {name for name in names if not name.startswith("HOLDFAST_")} - {"f"}
        assert given.keys() <= names <= given.keys() | RUNTIME_ENV
        assert b"PATH=/bin:/usr/bin\n" in made.output("stdout")
        assert made.output("stderr").decode() == given["TOKEN"]

    async def test_a_command_reads_its_work_and_writes_its_artifacts(
        self, trial: MakeBoxTrial
    ) -> None:
        made = trial(f"cat {WORK}/input > {ARTIFACTS}/output; pwd -P; cd {WORK}; pwd -P")
        (made.box.work / "input").write_text("given")
        (made.box.work / "input").chmod(0o644)
        assert await made.run() == BoxExit(code=0)
        assert (made.box.artifacts / "output").read_text() == "given"
        first, second = made.output("stdout").splitlines()
        assert first == second, "it starts in its work directory"

    async def test_another_instance_never_starts_what_has_run(
        self, bench: BoxBench, trial: MakeBoxTrial
    ) -> None:
        made = trial(STARTED)
        await made.run()
        later = BoxTrial(bench.another(), made.box)
        with pytest.raises(HoldfastError):
            await later.start()
        await asyncio.sleep(QUIET_SECONDS)
        assert made.lines() == ["started"]
        await later.boxes.close()

    async def test_nothing_is_left_of_boxes_that_are_closed(
        self, bench: BoxBench, trial: MakeBoxTrial
    ) -> None:
        await trial("exit 0").run()
        await bench.boxes.prepare(trial(STARTED).box)
        made = trial(f"{STARTED}{RUN_ON}")
        await made.started()
        if bench.boxes.survives:
            await _remove_all(bench.boxes)
        async with asyncio.timeout(LIMIT_SECONDS):
            await bench.boxes.close()
        assert not made.is_alive()
        assert not bench.left()

    async def test_an_agent_finds_its_directories_by_their_variables(
        self, bench: BoxBench, trial: MakeBoxTrial
    ) -> None:
        made = trial(
            "cat $HOLDFAST_INPUTS/task $HOLDFAST_SECRETS/key && "
            "cat $HOLDFAST_INPUTS/task > $HOLDFAST_EXCHANGE/events"
        )
        made.box = with_exchange(made.box)
        assert await made.run() == BoxExit(code=0)
        assert made.output("stdout") == b"task key "
        assert (made.box.directory / "exchange/events").read_text() == "task "

    async def test_a_runtime_is_tested_for_what_it_promises(self, bench: BoxBench) -> None:
        assert bench.boxes.isolated == isinstance(self, IsolatedBoxContract)
        assert bench.boxes.survives == isinstance(self, SurvivingBoxContract)


class IsolatedBoxContract(BoxContract):
    """What a runtime owes that keeps a command from its host: it is `isolated`."""

    async def test_work_is_writable_for_agents_alone(self, trial: MakeBoxTrial) -> None:
        write = f"echo x > {WORK}/made"
        assert (await trial(write).run()).code != 0
        agent = trial(write, work_writable=True, type="agent")
        assert await agent.run() == BoxExit(code=0)
        assert (agent.box.work / "made").read_text() == "x\n"

    async def test_an_agent_cannot_write_to_its_inputs_and_secrets(
        self, trial: MakeBoxTrial
    ) -> None:
        made = trial(
            "for place in $HOLDFAST_INPUTS $HOLDFAST_SECRETS; do "
            "chmod 700 $place; chmod 600 $place/*; echo x > $place/new && exit 3; "
            "for file in $place/*; do echo x >> $file && exit 4; rm $file && exit 5; done; done; "
            "exit 0"
        )
        made.box = with_exchange(made.box)
        assert await made.run() == BoxExit(code=0)
        assert (made.box.directory / "secrets/key").read_text() == "key "

    async def test_the_files_of_the_host_are_out_of_reach(self, trial: MakeBoxTrial) -> None:
        other = trial("")
        canary = other.box.directory / "canary"
        canary.write_text("secret")
        canary.chmod(0o666)
        made = trial(f"cat {canary}; echo changed > {canary}")
        assert (await made.run()).code != 0
        assert b"secret" not in made.output("stdout")
        assert canary.read_text() == "secret"


class LimitedBoxContract(BoxContract):
    """What a runtime owes that limits the memory of its boxes."""

    async def test_running_out_of_memory_is_distinguished_from_other_kills(
        self, trial: MakeBoxTrial
    ) -> None:
        commands = (BOMB, f"{BOMB}; exit 3", "kill -KILL $$")
        assert await asyncio.gather(*(trial(each).run() for each in commands)) == [
            BoxExit(code=137, out_of_memory=True),
            BoxExit(code=3, out_of_memory=True),
            BoxExit(code=137),
        ]

    async def test_an_attempt_does_not_inherit_what_happened_to_an_earlier_one(
        self, trial: MakeBoxTrial
    ) -> None:
        first = trial(BOMB)
        assert (await first.run()).out_of_memory
        argv = ("/bin/sh", "-c", "kill -KILL $$")
        directory = first.box.directory.parent / "2"
        second = trial("", job=first.box.job, attempt=2, argv=argv, directory=directory)
        directory.mkdir(exist_ok=True)
        assert await second.run() == BoxExit(code=137)


class RecoverableBoxContract(BoxContract):
    """What a runtime owes whose boxes can be found by another worker than the one they ran for."""

    async def test_another_instance_finds_kills_and_removes_a_box(
        self, bench: BoxBench, trial: MakeBoxTrial
    ) -> None:
        made = trial(f"{STARTED}{RUN_ON}")
        await made.started()
        later = BoxTrial(bench.another(), made.box)
        await _refuses_to_start(later, lines=["started"])
        assert await later.is_listed()
        expected = BoxState.RUNNING if bench.boxes.survives else BoxState.LOST
        assert await later.state() == expected
        await later.kill()
        assert not made.is_alive()
        await later.boxes.remove(made.box.job, made.box.attempt)
        assert not await later.is_listed()
        await later.boxes.close()


class SurvivingBoxContract(RecoverableBoxContract):
    """What a runtime owes whose boxes outlive the worker that started them: it `survives`."""

    async def test_a_box_runs_on_when_its_instance_is_closed(
        self, bench: BoxBench, trial: MakeBoxTrial
    ) -> None:
        made = trial(f"trap 'exit 11' TERM; {STARTED}{RUN_ON}")
        await made.started()
        await made.boxes.close()
        assert made.is_alive()
        later = BoxTrial(bench.another(), made.box)
        assert await later.state() == BoxState.RUNNING
        await later.boxes.terminate(made.box)
        assert await later.exit() == BoxExit(code=11)
        await later.boxes.close()

    async def test_another_instance_observes_an_exit_that_nobody_waited_for(
        self, bench: BoxBench, trial: MakeBoxTrial
    ) -> None:
        made = trial(f"{STARTED} exit 12")
        await made.start()
        await made.boxes.close()
        await made.wrote("started")
        later = BoxTrial(bench.another(), made.box)
        assert await later.exit() == BoxExit(code=12)
        assert await later.boxes.look(made.box) == Sight(BoxState.EXITED, BoxExit(code=12))
        await later.boxes.close()


async def _refuses_to_start(made: BoxTrial, lines: list[str] | None = None) -> None:
    with pytest.raises(HoldfastError):
        await made.boxes.start(made.box)
    await asyncio.sleep(QUIET_SECONDS)
    assert made.lines() == (lines or [])


async def _remove_all(boxes: Boxes) -> None:
    for label in await boxes.list():
        await boxes.remove(label.job, label.attempt)


def box_trials(bench: BoxBench, made: list[BoxTrial]) -> MakeBoxTrial:
    """Return what makes boxes of a bench, and keeps them in `made`."""

    def make(command: str, **fields: object) -> BoxTrial:
        box = replace(bench.box(command), **fields)
        made.append(BoxTrial(bench.boxes, box))
        return made[-1]

    return make
