"""`holdfast run`: submit a command, show its output as it comes, exit as it exits."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from msgspec import UNSET, UnsetType
from msgspec.structs import replace
from typer import Argument, Option

from holdfast.cli.artifacts import save_with_progress
from holdfast.cli.logs import print_unchanged
from holdfast.cli.options import JobCommand, read_pair, read_priority
from holdfast.cli.output import plain, print_note
from holdfast.cli.runtime import handle_signals, print_error
from holdfast.cli.settings import CommandFileOptions
from holdfast.cli.submit import submitted_line
from holdfast.cli.upload import Exclude, send_directory
from holdfast.errors import BadData, HoldfastError, ServerFailed, StoreUnavailable
from holdfast.flow.submit_command import WantedCommand, read_grant, read_spec
from holdfast.lifecycle.record import Job, JobId
from holdfast.operations.follow_logs import follow_lines
from holdfast.operations.pack_directory import PackedDirectory, pack_directory
from holdfast.operations.request import Operations, Request
from holdfast.operations.requests import (
    CancelJob,
    DeleteUpload,
    ExplainJob,
    GetJob,
    GetLogs,
    ListArtifacts,
    SubmitJob,
)
from holdfast.operations.sequences import wait_for_outcome
from holdfast.operations.views import JobOutcome, LogView
from holdfast.ports.models import Submitted

R = TypeVar("R")
TIMED_OUT, OWN_TROUBLE, CANCELLED = 124, 125, 130
"""Exit codes beside those of the command: as of `timeout`, of `docker run`, and of Ctrl-C."""
WHY_SECONDS = 2.0
"""How long a command waits for a worker before the reason is shown; and between two looks."""
RETRY_SECONDS = 1.0
"""Between two requests to a store or server that does not answer."""


class CommandKind(StrEnum):
    """The types of `holdfast run`."""

    WORKER = "worker"
    AGENT = "agent"


class BoxKind(StrEnum):
    """What a command can be run in."""

    PODMAN = "podman"
    SANDBOX = "sandbox"
    PROCESS = "process"


def run_command(
    command: JobCommand,
    words: Annotated[
        list[str] | None,
        Argument(metavar="[--] CMD...", help="The program and its arguments, without a shell."),
    ] = None,
    *,
    shell: Annotated[
        str | None, Option(help="A command for /bin/sh -c, instead of CMD: 'make && make test'.")
    ] = None,
    type_: Annotated[
        CommandKind, Option("--type", help="worker runs a command; agent a --task.")
    ] = CommandKind.WORKER,
    image: Annotated[str | None, Option(help="The container image.")] = None,
    cpus: Annotated[
        str | None, Option(metavar="NUMBER", help="CPUs; default 2, at most 8 (agent: 4).")
    ] = None,
    memory_gb: Annotated[
        str | None,
        Option(metavar="NUMBER", help="Memory in GB; default 4, at most 16 (agent: 8)."),
    ] = None,
    timeout_minutes: Annotated[
        str | None,
        Option(metavar="NUMBER", help="Minutes it may run; default 30 (agent: 60), at most 120."),
    ] = None,
    runner: Annotated[
        BoxKind | None, Option(help="What it must run in; default: the best that the host has.")
    ] = None,
    env: Annotated[
        list[str] | None, Option("--env", help="A variable, NAME=TEXT; may be repeated.")
    ] = None,
    labels: Annotated[
        list[str] | None, Option("--label", help="NAME=TEXT; may be repeated.")
    ] = None,
    priority: Annotated[str | None, Option(help="critical, interactive or batch.")] = None,
    queue: Annotated[str | None, Option(help="The queue; default: commands or agents.")] = None,
    task: Annotated[str | None, Option(help="What an agent is to do.")] = None,
    context: Annotated[str | None, Option(help="What an agent should know for it.")] = None,
    git_branch: Annotated[str | None, Option(help="The branch that an agent works on.")] = None,
    profile: Annotated[
        str | None, Option(help="How an agent is run, a profile of the host; default: default.")
    ] = None,
    client_job_id: Annotated[
        str | None,
        Option(help="A version 4 UUID of your own: a repeated run follows the first job."),
    ] = None,
    artifacts: Annotated[
        Path | None,
        Option(metavar="DIR", help="Save what it leaves in /artifacts below DIR, after its end."),
    ] = None,
    sent: Annotated[
        Path | None,
        Option("--files", metavar="DIR", help="Upload this directory: it becomes /work."),
    ] = None,
    exclude: Exclude = None,
    detach: Annotated[bool, Option("--detach", "-d", help="Submit it, and do not wait.")] = False,
    files: CommandFileOptions,
) -> None:
    """Run a command in a box on a worker's host: show its output, exit with its code.

    Ctrl-C cancels it, a second Ctrl-C kills it. Exit codes of its own: 124 if it ran out of time,
    125 if Holdfast could not run it to its end, 130 if it was cancelled. --files sends a directory
    first; Ctrl-C while it is sent removes it, and nothing is submitted. --json prints one object
    to stdout, and the command's output to stderr.
    """
    try:
        wanted = WantedCommand(
            type=type_.value,
            command=shell,
            argv=tuple(words) if words else None,
            image=image,
            cpus=_read_number(cpus, "--cpus"),
            memory_gb=_read_number(memory_gb, "--memory-gb"),
            timeout_minutes=_read_number(timeout_minutes, "--timeout-minutes"),
            runner=None if runner is None else runner.value,
            env=_read_pairs(env, "--env"),
            labels=_read_pairs(labels, "--label"),
            priority=read_priority(priority),
            queue=queue,
            task=task,
            context=context,
            git_branch=git_branch,
            profile=profile,
            client_job_id=client_job_id,
        )
        if detach and artifacts is not None:
            raise BadData("--artifacts waits for the end, and --detach does not")
        # Before anything is sent: a command that is refused needs no files.
        read_spec(wanted)
        read_grant(wanted)
        archive = None if sent is None else pack_directory(sent, exclude=exclude or ())
        if detach:
            code = _submit_only(command, wanted, archive, files)
        else:
            code = _run(command, wanted, archive, files, artifacts)
    except HoldfastError as error:
        # Not the codes of other commands: the command that runs may exit with any of them.
        print_error(error)
        code = OWN_TROUBLE
    raise typer.Exit(code)


def _read_pairs(pairs: list[str] | None, option: str) -> dict[str, str] | None:
    return dict(read_pair(pair, option) for pair in pairs) if pairs else None


def _read_number(text: str | None, option: str) -> int | UnsetType:
    """Read a whole number; typer's own reader takes 2.0 and 1e3 for one, too."""
    if text is None:
        return UNSET
    if not _NUMBER.fullmatch(text):
        raise BadData(f"{option} must be a whole number, not {text!r}")
    return int(text)


_NUMBER = re.compile(r"-?[0-9]{1,18}", re.ASCII)


def _submit_only(
    command: JobCommand,
    wanted: WantedCommand,
    archive: PackedDirectory | None,
    files: CommandFileOptions,
) -> int:
    async def work(operations: Operations) -> Submitted:
        return await _submit(operations, await _send_files(operations, command, wanted, archive))

    made = command.ask(work, files=files)
    notes = [] if made.note is None else [plain(made.note)]
    command.show(_as_data(made.job, made.created), submitted_line(made), notes=notes)
    return 0


async def _send_files(
    operations: Operations,
    command: JobCommand,
    wanted: WantedCommand,
    archive: PackedDirectory | None,
) -> WantedCommand:
    """Upload the files of a command, if it has any; return it with their id.

    Before it is submitted: nothing is on record for a client that gives up while it sends.
    """
    if archive is None:
        return wanted
    upload = await send_directory(operations, archive, quiet=command.as_json)
    return replace(wanted, files_id=upload.id)


async def _submit(operations: Operations, wanted: WantedCommand) -> Submitted:
    """Submit a command; what was sent for one that exists already is not needed, and removed."""
    made = await operations.do(SubmitJob(job=wanted))
    if not made.created and wanted.files_id is not None:
        # It expires anyway, and stays if it is the one that the job was made with.
        with suppress(HoldfastError):
            await operations.do(DeleteUpload(upload=wanted.files_id))
    return made


def _run(
    command: JobCommand,
    wanted: WantedCommand,
    archive: PackedDirectory | None,
    files: CommandFileOptions,
    artifacts: Path | None,
) -> int:
    """Submit a command and stay with it until it has ended; return the code to exit with."""

    async def work(operations: Operations) -> tuple[Submitted, JobOutcome, bool]:
        job = await _send_files(operations, command, wanted, archive)
        made, ended = await Follower(operations, to_stderr=command.as_json).run(job)
        saved = artifacts is None or await _save_artifacts(operations, ended.job, artifacts)
        return made, ended, saved

    made, ended, saved = command.ask(work, files=files)
    job, error = ended.job, ended.outcome.error()
    notes = [] if error is None else [plain(error)]
    command.show(_as_data(job, made.created), notes=notes)
    code = exit_code_of(job)
    return OWN_TROUBLE if code == 0 and not saved else code


async def _save_artifacts(operations: Operations, job: Job, directory: Path) -> bool:
    """Save what an ended command left; return whether all of it is there."""
    try:
        listed = await operations.do(ListArtifacts(job=job.id))
        await save_with_progress(operations, listed, listed.artifacts, directory, overwrite=False)
    except HoldfastError as error:
        print_error(error)
        print_note(f"try again: holdfast artifacts {plain(job.public_id)} --to DIR")
        return False
    return True


def exit_code_of(job: Job) -> int:
    """Return the exit code that describes how a job ended.

    That of its command, where that ended by itself. What was stopped may have exited with 0, and
    what was lost has no code.
    """
    if job.succeeded:
        return 0
    if job.timed_out:
        return TIMED_OUT
    if job.cancelled:
        return CANCELLED
    return job.exit_code if job.exit_code and job.exit_code > 0 else OWN_TROUBLE


def _as_data(job: Job, created: bool) -> dict[str, Any]:
    return {
        "job_id": job.public_id,
        "internal_id": str(job.id),
        "created": created,
        "state": job.state.value,
        "exit_code": job.exit_code,
        "error_code": job.error_code,
    }


class Interrupts:
    """Counts Ctrl-C, also before there is a job to cancel."""

    def __init__(self) -> None:
        """Catch SIGINT and SIGTERM of the running loop from now on."""
        self._pending: asyncio.Queue[None] = asyncio.Queue()
        handle_signals(lambda: self._pending.put_nowait(None))

    async def next(self) -> None:
        """Wait for the next one."""
        await self._pending.get()


class Follower:
    """Stays with one command: shows its output, explains why it waits, hands on Ctrl-C."""

    def __init__(self, operations: Operations, *, to_stderr: bool) -> None:
        """Follow a command over these operations; `to_stderr`: stdout is for something else."""
        self._operations = operations
        self._to_stderr = to_stderr
        self._position = 0
        """The last line that was printed."""

    async def run(self, wanted: WantedCommand) -> tuple[Submitted, JobOutcome]:
        """Submit a command; return how it ended."""
        interrupts = Interrupts()
        made = await _submit(self._operations, wanted)
        for note in (submitted_line(made), made.note):
            if note is not None:
                print_note(plain(note))
        return made, await self._follow(made.job, interrupts)

    async def _follow(self, job: Job, interrupts: Interrupts) -> JobOutcome:
        ending = asyncio.create_task(self._wait_for_end(job.id))
        printing = asyncio.create_task(self._print_log(job.id))
        explaining = asyncio.create_task(self._explain_wait(job.id))
        leaving = asyncio.create_task(self._hand_on(interrupts, job.id))
        try:
            await asyncio.wait({ending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not ending.done():
                print_note(f"job {plain(job.public_id)} is left; it is being killed")
                raise typer.Exit(CANCELLED)
            # The log ends with the job: what of it is left to print is there.
            await printing
            return ending.result()
        finally:
            tasks = (ending, printing, explaining, leaving)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait_for_end(self, job: JobId) -> JobOutcome:
        return await self._patiently(lambda: wait_for_outcome(self._operations, job))

    async def _print_log(self, job: JobId) -> None:
        """Print the command's output until it has ended; what cannot be read stops nothing."""
        try:
            await self._patiently(lambda: self._print_lines(job))
        except HoldfastError as error:
            print_note(f"the output cannot be shown: {plain(error)}")

    async def _print_lines(self, job: JobId) -> None:
        wanted = GetLogs(job=job, after=self._position)
        async for line in follow_lines(self._operations, wanted):
            self._print_line(line)
            self._position = line.position

    def _print_line(self, line: LogView) -> None:
        if self._to_stderr:
            typer.echo(line.message.encode(), err=True)
        else:
            print_unchanged(line)

    async def _explain_wait(self, job: JobId) -> None:
        """Explain on stderr why the command does not start, once for each reason."""
        shown: str | None = None
        while True:
            await asyncio.sleep(WHY_SECONDS)
            record = await self._do(GetJob(job=job))
            if record.started_at is not None or record.terminal:
                return
            why = await self._do(ExplainJob(job=job))
            if why.reason.code != shown:
                shown = why.reason.code
                advice = "" if why.advice is None else f" ({why.advice})"
                print_note(plain(f"waiting: {why.text}{advice}"))

    async def _hand_on(self, interrupts: Interrupts, job: JobId) -> None:
        """Cancel at the first Ctrl-C, kill at the second, return at the third."""
        for hard, note in ((False, "cancelling it"), (True, "killing it")):
            await interrupts.next()
            print_note(f"{note}; Ctrl-C again {'leaves it' if hard else 'kills it'}")
            try:
                await self._do(CancelJob(job=job, hard=hard, reason="interrupted"))
            except HoldfastError as error:
                print_error(error)
        await interrupts.next()

    async def _do(self, request: Request[R]) -> R:
        return await self._patiently(lambda: self._operations.do(request))

    async def _patiently(self, work: Callable[[], Awaitable[R]]) -> R:
        """Do work; try again while the store or the server does not answer: the job continues."""
        while True:
            try:
                return await work()
            except (StoreUnavailable, ServerFailed) as error:
                print_note(f"will retry: {plain(error)}")
            await asyncio.sleep(RETRY_SECONDS)
