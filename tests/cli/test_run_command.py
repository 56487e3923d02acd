"""`holdfast run`: as a person uses it; a worker that runs commands is played by the test."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from holdfast.cli.run import CANCELLED, OWN_TROUBLE, TIMED_OUT, exit_code_of
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Job, JobId
from holdfast.lifecycle.states import CancelMode, State
from holdfast.ports.models import ClaimRequest
from holdfast.ports.store import Store
from holdfast.runners.command.collect_artifacts import collect_artifacts
from holdfast.testing.factories import fresh, owner_of
from holdfast.testing.store_actions import do, job_in
from holdfast.wiring import opened, plan_blobs, read_address
from tests.cli.commands import answered, on, run
from tests.docs.pages import ROOT
from tests.support.artifacts import dead_box, end, write_files
from tests.support.command_ends import CAPABILITIES, end_command, exited
from tests.support.command_table import AGENT, KEPT, KEY, NUMBERS, REFUSED, Case
from tests.support.spool import record, ship_into

LIMIT_SECONDS = 60.0


@pytest.fixture
def place(tmp_path: Path) -> str:
    """A store of the test's own."""
    found = str(tmp_path / "jobs.db")
    run(found, "migrate")
    return found


@contextmanager
def running(place: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Run `holdfast run`; it is killed if it has not ended by itself."""
    # Tests may run in a shell's background, where Ctrl-C is ignored, and that is inherited.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", "run", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={
            **os.environ,
            "COLUMNS": "200",
            "HOLDFAST_URL": place,
            "HOLDFAST_COMMAND_DIR": str(files_of(place)),
        },
    )
    signal.signal(signal.SIGINT, before)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for the end: the exit code, what is left of stdout and of stderr."""
    out, err = process.communicate(timeout=LIMIT_SECONDS)
    return process.returncode, out, err


def as_worker(place: str, work: Callable[[Store, Job], Awaitable[Any]]) -> None:
    """Wait for the command, start it, and do the rest of a worker's part."""

    async def main() -> None:
        async with opened(read_address(place)) as store:
            job = await started(store)
            await work(store, job)

    asyncio.run(main())


async def started(store: Store, queues: tuple[str, ...] = ("commands",)) -> Job:
    """Claim and start the next command, once there is one."""
    for _ in range(int(LIMIT_SECONDS / 0.05)):
        request = ClaimRequest(
            owner="w", queues=queues, limit=1, request_id=fresh("c"), capabilities=CAPABILITIES
        )
        for claimed in await store.claim(request):
            return await do(store, claimed.job, c.Start(actor=owner_of(claimed.job)))
        await asyncio.sleep(0.05)
    raise AssertionError("no command came")


def files_of(place: str) -> Path:
    """Return the directory of the commands of a store of this test."""
    return Path(place).with_name("files")


async def prints(place: str, store: Store, job: Job, *lines: str) -> None:
    """Write lines into the job's log, as its box does."""
    await ship_into(store, files_of(place), job, *map(record, lines))


async def cancel_requested(store: Store, job: Job, mode: CancelMode) -> Job:
    """Wait until the job's owner is asked to stop it."""
    for _ in range(int(LIMIT_SECONDS / 0.05)):
        [found] = await store.get([job.id])
        if found is not None and found.cancel_requested is mode:
            return found
        await asyncio.sleep(0.05)
    raise AssertionError(f"nobody asked for a {mode} cancel")


@pytest.mark.req("D4")
@pytest.mark.parametrize("code", [0, 42, 125, 137])
def test_it_prints_the_output_and_exits_as_the_command_does(place: str, code: int) -> None:
    async def work(store: Store, job: Job) -> None:
        await prints(place, store, job, "one", "zwei → 2")
        await do(store, job, exited(owner_of(job), code))

    with running(place, "--image", "busybox", "--", "make", "-j4") as process:
        as_worker(place, work)
        found, out, err = ended(process)
    assert (found, out) == (code, "one\nzwei → 2\n")
    assert "submitted to queue commands" in err
    assert ("failed" in err) is (code != 0)


def test_the_output_is_read_where_the_hosts_worker_keeps_it(place: str, tmp_path: Path) -> None:
    async def work(store: Store, job: Job) -> None:
        await ship_into(store, tmp_path / "files", job, record("hello"))
        await do(store, job, exited(owner_of(job), 0))

    with running(place, "--command-dir", str(tmp_path / "files"), "--", "true") as process:
        as_worker(place, work)
        code, out, _ = ended(process)
    assert (code, out) == (0, "hello\n")


@pytest.mark.req("D6")
def test_a_command_that_ran_out_of_time_is_told_by_a_code_of_its_own(place: str) -> None:
    async def work(store: Store, job: Job) -> None:
        # It handled SIGTERM and exited with 0: it has not succeeded all the same.
        await do(store, job, c.TimeOut(actor=owner_of(job), exit_code=0))

    with running(place, "sleep", "9") as process:
        as_worker(place, work)
        code, _, err = ended(process)
    assert code == TIMED_OUT
    assert "timed out" in err


@pytest.mark.req("D7", "B12", "B13")
def test_ctrl_c_cancels_and_a_second_one_kills(place: str) -> None:
    async def work(store: Store, job: Job) -> None:
        await prints(place, store, job, "started")
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGINT)
        await cancel_requested(store, job, CancelMode.SOFT)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        asked = await cancel_requested(store, job, CancelMode.HARD)
        assert process.poll() is None
        await do(store, asked, c.Cancel(actor=owner_of(asked), exit_code=137))

    with running(place, "sleep", "9") as process:
        as_worker(place, work)
        code, _, err = ended(process)
    assert code == CANCELLED
    assert "cancelling it" in err
    assert "killing it" in err


@pytest.mark.req("D7")
def test_ctrl_c_before_a_worker_has_it_cancels_at_once(place: str) -> None:
    with running(place, "sleep", "9") as process:
        assert process.stderr is not None
        assert "submitted" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        code, _, _ = ended(process)
    assert code == CANCELLED
    [job] = answered(place, "ls")["jobs"]
    assert job["state"] == "cancelled"


def test_a_third_ctrl_c_leaves_a_job_that_nobody_ends(place: str) -> None:
    async def work(store: Store, job: Job) -> None:
        for mode in (CancelMode.SOFT, CancelMode.HARD):
            process.send_signal(signal.SIGINT)
            await cancel_requested(store, job, mode)
        # Not before the answer to the second has come.
        assert process.stderr is not None
        while "killing it" not in process.stderr.readline():
            pass
        await asyncio.sleep(0.5)
        process.send_signal(signal.SIGINT)

    with running(place, "sleep", "9") as process:
        as_worker(place, work)
        code, _, err = ended(process)
    assert code == CANCELLED
    assert "is left" in err


@pytest.mark.req("D18")
def test_while_no_worker_runs_commands_it_says_so(place: str) -> None:
    with running(place, "true") as process:
        assert process.stderr is not None
        lines = [process.stderr.readline() for _ in range(2)]
        process.send_signal(signal.SIGINT)
        ended(process)
    assert "queue 'commands' has 0 live workers, none that runs commands" in lines[1]
    assert "holdfast worker --commands auto" in lines[1]


def test_with_json_stdout_is_one_object_and_the_output_goes_to_stderr(place: str) -> None:
    async def work(store: Store, job: Job) -> None:
        await prints(place, store, job, "hello")
        await do(store, job, exited(owner_of(job), 3))

    with running(place, "--json", "make") as process:
        as_worker(place, work)
        code, out, err = ended(process)
    answer = json.loads(out)
    assert (code, answer["exit_code"], answer["state"]) == (3, 3, "failed")
    assert "hello\n" in err


@pytest.mark.req("D11")
def test_a_repeated_run_follows_the_first_job(place: str) -> None:
    first = answered(place, "run", "--shell", "make", "--client-job-id", KEY, "--detach")
    on(place, lambda store: end_command(store, 7))
    with running(place, "--client-job-id", KEY.upper(), "make") as process:
        code, _, err = ended(process)
    assert code == 7
    assert f"job {first['job_id']} already exists (failed)" in err


class TestExitCodes:
    """How the end of a job is told to a shell."""

    @pytest.mark.parametrize(
        ("state", "exit_code", "code"),
        [
            (State.SUCCEEDED, 0, 0),
            (State.FAILED, 1, 1),
            (State.FAILED, 137, 137),
            (State.FAILED, None, OWN_TROUBLE),
            (State.FAILED, -1, OWN_TROUBLE),
            (State.FAILED, 0, OWN_TROUBLE),
            (State.TIMED_OUT, 0, TIMED_OUT),
            (State.TIMED_OUT, 137, TIMED_OUT),
            (State.CANCELLED, 0, CANCELLED),
            (State.CANCELLED, 137, CANCELLED),
            (State.DEAD_LETTERED, None, OWN_TROUBLE),
            (State.DENIED, None, OWN_TROUBLE),
        ],
    )
    def test_only_an_observed_exit_of_its_own_is_the_commands(
        self, place: str, state: State, exit_code: int | None, code: int
    ) -> None:
        job = on(place, lambda store: job_in(store, State.SUCCEEDED))
        assert exit_code_of(replace(job, state=state, exit_code=exit_code)) == code

    def test_what_holdfast_refuses_or_cannot_reach_is_125(self, place: str) -> None:
        for words in (
            ["--cpus", "0", "true"],
            [],
            ["--type", "agent", "true"],
            ["--env", "A", "x"],
        ):
            with running(place, *words) as process:
                assert ended(process)[0] == OWN_TROUBLE, words
        with running(f"{place}.not-there", "true") as process:
            assert ended(process)[0] == OWN_TROUBLE

    def test_the_pages_list_them(self) -> None:
        for name in ("docs/how-to/commands.md", "docs/cli.md"):
            text = (ROOT / name).read_text("utf-8")
            assert all(f"**{code}**" in text for code in (TIMED_OUT, OWN_TROUBLE, CANCELLED)), name


OPTIONS = {"command": "--shell"}
"""What a field is called here, where that is not its name."""


def typed(request: dict[str, Any]) -> list[str] | None:
    """Return a request as it is typed; None where no one can type it."""
    line: list[str] = []
    for field, value in request.items():
        if field == "argv" or not isinstance(value, str | int | float) or isinstance(value, bool):
            return None
        if field in NUMBERS and isinstance(value, str):
            # What is typed is text, and read as a number.
            return None
        if isinstance(value, str) and ("\0" in value or len(value) > 20_000):
            return None
        option = OPTIONS.get(field, f"--{field.replace('_', '-')}")
        line += [f"{option}={value}"]
    return line


@pytest.mark.req("D2", "D17")
@pytest.mark.parametrize(
    "case", [case for case in KEPT if typed(case.request)], ids=lambda case: case.name
)
def test_a_command_is_kept_as_the_table_says(place: str, case: Case) -> None:
    made = answered(place, "run", *(typed(case.request) or []), "--detach")
    job = answered(place, "show", made["job_id"])
    granted = {
        "cpus": job["job"]["cpus"],
        "memory_gb": job["job"]["memory_mb"] // 1024,
        "timeout_minutes": int(job["job"]["policy"]["timeout"].removesuffix("s")) // 60,
    }
    assert (granted | job["events"][0]["payload"])[case.field] == case.kept


@pytest.mark.req("D1", "D2", "D17")
@pytest.mark.parametrize(
    "case",
    [case for case in REFUSED if typed(case.request) and case.field not in ("files_id", "retries")],
    ids=lambda case: case.name,
)
def test_a_refusal_names_the_field(place: str, case: Case) -> None:
    outcome = run(place, "run", *(typed(case.request) or []), "--detach")
    assert outcome.exit_code in (2, OWN_TROUBLE), outcome.output
    option = OPTIONS.get(case.field, case.field.replace("_", "-")).removeprefix("--")
    words = {case.field, option, "command"} if case.field == "command" else {case.field, option}
    assert any(word in outcome.output for word in words), outcome.output
    assert answered(place, "ls")["jobs"] == []


def test_show_and_ls_tell_what_a_command_ran_and_how_it_exited(place: str) -> None:
    words = ("--image", "busybox", "--cpus", "99", "--runner", "podman", "--shell", "make && x")
    made = answered(place, "run", *words, "--detach")
    on(place, lambda store: end_command(store, 3))
    shown = run(place, "show", made["job_id"]).output
    facts = dict(line.split(maxsplit=1) for line in shown.splitlines()[:20] if " " in line)
    assert facts["type"] == "worker"
    assert facts["command"] == "make && x"
    assert (facts["image"], facts["runner"], facts["cpus"]) == ("busybox", "podman", "8")
    assert facts["memory"] == "4 GB"
    assert "asked for      cpus 99" in shown
    assert "exit code      3" in shown
    assert "time limit     30 min" in shown
    assert "exit 3" in run(place, "ls").output


def test_show_tells_an_agents_task(place: str) -> None:
    made = answered(place, "run", *(typed(AGENT) or []), "--detach")
    shown = run(place, "show", made["job_id"]).output
    assert "agent's task   fix the build" in shown
    assert "git branch     fix/build" in shown


def test_what_follows_the_program_is_the_programs(place: str) -> None:
    with running(place, "--detach", "make", "--json", "-j4", "--image=x") as process:
        code, out, _ = ended(process)
    assert code == 0
    [job] = answered(place, "ls")["jobs"]
    assert job["id"] in out
    body = answered(place, "show", job["id"])["events"][0]["payload"]
    assert body == {"type": "worker", "argv": ["make", "--json", "-j4", "--image=x"]}


def test_a_redrive_of_a_failed_command_is_a_new_linked_job(place: str) -> None:
    made = answered(place, "run", "--shell", "make", "--detach")
    on(place, lambda store: end_command(store, 3))
    again = answered(place, "redrive", made["job_id"])
    assert (again["link_kind"], again["parent_id"]) == ("redrive", made["internal_id"])
    assert again["kind"] == "command"


def test_environment_and_labels_are_kept(place: str) -> None:
    pairs = ("--env", "A=1", "--env", "B=x=y", "--label", "team=core")
    made = answered(place, "run", *pairs, "--shell", "env", "--detach")
    [event] = on(place, lambda store: store.events(JobId(UUID(made["internal_id"]))))
    assert event.created is not None
    assert event.created.labels == {"team": "core"}
    assert event.created.env == {"A": "1", "B": "x=y"}


@pytest.mark.req("D13")
@pytest.mark.parametrize("code", [0, 7])
def test_it_saves_what_the_command_left_whatever_the_outcome(
    place: str, tmp_path: Path, code: int
) -> None:
    to = tmp_path / "to"

    async def work(store: Store, job: Job) -> None:
        await leave_and_end(place, store, job, tmp_path, code)

    with running(place, "--artifacts", str(to), "--", "make") as process:
        as_worker(place, work)
        found, _, err = ended(process)
    assert found == code, err
    assert (to / "out" / "file").read_bytes() == b"made"
    assert "1 artifact, 4 bytes, saved below" in err


def test_an_output_that_cannot_be_saved_is_not_a_success(place: str, tmp_path: Path) -> None:
    to = tmp_path / "to"
    (to / "out").mkdir(parents=True)
    (to / "out" / "file").write_text("mine")

    async def work(store: Store, job: Job) -> None:
        await leave_and_end(place, store, job, tmp_path, 0)

    with running(place, "--artifacts", str(to), "--", "make") as process:
        as_worker(place, work)
        found, _, err = ended(process)
    assert found == OWN_TROUBLE
    assert "file_not_saved" in err
    assert "holdfast artifacts" in err
    assert (to / "out" / "file").read_text() == "mine"


def test_what_does_not_wait_for_the_end_cannot_save_what_is_left(place: str) -> None:
    outcome = run(place, "run", "--detach", "--artifacts", "x", "--", "make")
    assert outcome.exit_code == OWN_TROUBLE
    assert "--detach" in outcome.stderr


async def leave_and_end(place: str, store: Store, job: Job, directory: Path, code: int) -> None:
    """Leave a file in /artifacts, and end."""
    box = dead_box(directory, job.id, job.attempt)
    write_files(box, {"out/file": b"made"})
    blobs = await plan_blobs(None, files_of(place))(store)
    kept = await collect_artifacts(blobs, box)
    await end(store, job, kept, code)
