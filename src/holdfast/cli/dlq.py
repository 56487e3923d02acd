"""`holdfast dlq`: read dead letters, redrive them, discard them, one by one or by filter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Annotated, Any

import typer
from msgspec.structs import replace
from typer import Argument, Option

from holdfast.cli.options import (
    Before,
    JobCommand,
    JobName,
    Limit,
    OfQueue,
    OfTask,
    Options,
    Since,
    Until,
    check_texts,
    find_job,
    read_cursor,
    read_seconds,
    read_time,
)
from holdfast.cli.output import (
    align_table,
    error_summary,
    facts,
    plain,
    print_note,
    progress_bar,
    short,
    time_text,
    traceback_lines,
)
from holdfast.cli.runtime import BAD_INPUT, FOUND_PROBLEMS
from holdfast.errors import BadData
from holdfast.flow.redrive import FAILURES_KEPT, Settled
from holdfast.lifecycle.record import Job
from holdfast.lifecycle.states import Letter
from holdfast.operations import requests as q
from holdfast.operations.json_format import json_of
from holdfast.operations.request import Operations
from holdfast.queries.dead_letters import DeadLetterView, LetterPage
from holdfast.queries.why.phrases import count

TITLES = ("JOB", "REASON", "STAGE", "TASK", "QUEUE", "TRIES", "DEAD AT", "ERROR")
PART = 100
"""How many letters are settled before the progress bar moves."""


class LetterOptions(Options):
    """Which letters."""

    queue: OfQueue = None
    task: OfTask = None
    reason: Annotated[str | None, Option(help="Only of this reason or error code.")] = None
    since: Since = None
    until: Until = None

    async def read(self, operations: Operations) -> dict[str, Any]:
        """Return them as fields of a request."""
        check_texts(queue=self.queue, task=self.task, reason=self.reason)
        return {
            "queue": self.queue,
            "task": self.task,
            "error_code": self.reason,
            "created_from": await read_time(operations, self.since, "--since"),
            "created_until": await read_time(operations, self.until, "--until"),
        }


class SettleOptions(LetterOptions):
    """One letter or all that the filters find, and how carefully."""

    job: Annotated[str | None, Argument(metavar="JOB", help="A job_id, or an internal id.")] = None
    every: Annotated[bool, Option("--all", help="Every open letter that the filters find.")] = False
    limit: Annotated[
        int | None, Option(min=1, help="With --all: at most this many, newest first.")
    ] = None
    yes: Annotated[bool, Option("--yes", help="With --all: do not ask.")] = False
    dry_run: Annotated[bool, Option("--dry-run", help="With --all: only count the letters.")] = (
        False
    )
    note: Annotated[str | None, Option(help="Why; kept in the history.")] = None

    def check(self, *, for_one: bool = False) -> None:
        """Refuse a command line if a part of it would be ignored."""
        if (self.job is None) is not self.every:
            raise BadData("name one JOB, or use --all and filters")
        filters = (self.queue, self.task, self.reason, self.since, self.until, self.limit)
        if self.job is not None and (self.dry_run or any(one is not None for one in filters)):
            raise BadData("filters, --limit and --dry-run go with --all, not with a JOB")
        if self.every and for_one:
            raise BadData("--again and --request-id are for one JOB, not for --all")


def list_letters(
    command: JobCommand,
    which: LetterOptions,
    *,
    state: Annotated[str, Option(help="open, redriven or discarded.")] = "open",
    limit: Limit = 50,
    before: Before = None,
) -> None:
    """List dead letters, newest job first."""
    letter = Letter.named(state)
    if letter is Letter.UNKNOWN:
        raise BadData(f"--state must be open, redriven or discarded, not {state!r}")
    after = read_cursor(before)

    async def work(operations: Operations) -> LetterPage:
        filters = await which.read(operations)
        return await operations.do(
            q.ListLetters(**filters, letter=letter, before=after, limit=limit)
        )

    page = command.ask(work)
    lines = (
        align_table(TITLES, map(_letter_row, page.letters))
        if page.letters
        else [f"no {state} letters"]
    )
    notes = [f"job {id_}: {plain(why)}" for id_, why in page.unreadable.items()]
    notes += [] if page.next is None else [f"more: --before {page.next}"]
    command.show(page, *lines, notes=notes)


def _letter_row(letter: DeadLetterView) -> tuple[str, ...]:
    return (
        plain(letter.job_id),
        plain(letter.reason_code),
        letter.stage,
        short(letter.task, 30),
        short(letter.queue, 20),
        str(letter.attempts),
        time_text(letter.dead_at),
        short(error_summary(letter.last_error)),
    )


def show_letter(command: JobCommand, job: JobName) -> None:
    """Show one dead letter with its error; also of a job that was denied or timed out."""
    letter = command.do(q.GetLetter(job=job))
    command.show(letter, *facts(_letter_facts(letter)), *traceback_lines(letter.last_error))


def _letter_facts(letter: DeadLetterView) -> Iterator[tuple[str, str]]:
    yield "job", plain(letter.job_id)
    yield "id", "" if letter.job_id == str(letter.id) else str(letter.id)
    yield "task", plain(letter.task)
    yield "queue", plain(letter.queue)
    yield "tenant", plain(letter.tenant)
    yield "state", letter.state.value
    yield "letter", "none" if letter.letter is None else letter.letter.value
    if letter.settled_at is not None:
        yield "settled", f"{time_text(letter.settled_at)} by {plain(letter.settled_by)}"
    yield "redriven as", plain(letter.redriven_as)
    yield "reason", f"{plain(letter.reason_code)} at stage {letter.stage}"
    yield "tries", f"{letter.attempts} ({letter.failures} failed)"
    yield "last owner", plain(letter.last_owner)
    yield "last lease", time_text(letter.last_lease_expires_at)
    yield "correlation", plain(letter.correlation_id)
    yield "submitted", time_text(letter.created_at)
    yield "dead", time_text(letter.dead_at)
    yield "error", plain(error_summary(letter.last_error))


def redrive_letters(
    command: JobCommand,
    which: SettleOptions,
    *,
    to_queue: Annotated[str | None, Option(help="Submit the new job to this queue.")] = None,
    retries: Annotated[
        int | None, Option(min=0, help="How often the new job may be retried.")
    ] = None,
    delay: Annotated[
        str | None, Option(help="The new job is due after this time: 5m, 1h30m.")
    ] = None,
    from_start: Annotated[
        bool, Option("--from-start", help="Start over, instead of resuming after its steps.")
    ] = False,
    again: Annotated[
        bool, Option("--again", help="Even if it was redriven or discarded before.")
    ] = False,
    request_id: Annotated[
        str | None, Option(help="For scripts: a repeated redrive returns the first job.")
    ] = None,
) -> None:
    """Submit the work of a dead or failed job again, as a new job that is linked to it.

    The new job resumes: recorded steps, waits and children are not repeated, unless --from-start
    is given. Repeated, the command returns the job that it made. Keys (job_id, dedupe_key and the
    like) stay with the dead job.
    """
    which.check(for_one=again or request_id is not None)
    check_texts(**{"to-queue": to_queue})
    terms: dict[str, Any] = {
        "retries": retries,
        "delay_seconds": read_seconds(delay, "--delay") or 0.0,
        "from_start": from_start,
        "reason": which.note,
    }

    async def redrive(operations: Operations) -> tuple[Job, Job]:
        dead = await operations.do(q.GetJob(job=await find_job(operations, which.job or "")))
        request = q.RedriveLetter(
            job=dead.id, queue=to_queue, again=again, request_id=request_id, **terms
        )
        return dead, await operations.do(request)

    if which.job is None:
        settle = partial(q.RedriveLetters, to_queue=to_queue, **terms)
        _settle_many(command, which, settle, verb="redrive", done="redriven")
        return
    dead, new = command.ask(redrive)
    how = "from the start" if from_start else "resuming from its recorded steps"
    command.show_job(new, f"job {plain(dead.public_id)} redriven as {new.id}, {how}")


def discard_letters(command: JobCommand, which: SettleOptions) -> None:
    """Discard dead letters: the jobs stay as they are, and leave the list of open letters."""
    which.check()
    if which.job is None:
        settle = partial(q.DiscardLetters, reason=which.note)
        _settle_many(command, which, settle, verb="discard", done="discarded")
        return
    dead = command.do(q.DiscardLetter(job=which.job, reason=which.note))
    command.show_job(dead, f"the letter of job {plain(dead.public_id)} is discarded")


def _settle_many(
    command: JobCommand,
    which: SettleOptions,
    settle: Callable[..., q.SettleLetters],
    *,
    verb: str,
    done: str,
) -> None:
    """Count the letters, ask, settle them, and show how many were settled."""

    async def count_letters(operations: Operations) -> int:
        found = await operations.do(q.CountLetters(**await which.read(operations)))
        return found.letters if which.limit is None else min(found.letters, which.limit)

    async def work(operations: Operations) -> Settled:
        request = settle(**await which.read(operations))
        with progress_bar(verb, total, quiet=command.as_json) as show:
            return await _settle_in_parts(operations, request, which.limit, show)

    total = command.ask(count_letters)
    letters = count(total, "dead letter")
    if which.dry_run:
        command.show({"would": verb, "letters": total}, f"would {verb} {letters}")
        return
    if total and not which.yes:
        _confirm(f"{verb} {letters}?")
    report = command.ask(work)
    answer = json_of(report)
    del answer["next"]
    counts = [f"{report.done:,} {done}"]
    counts += [f"{report.skipped:,} settled by others first"] if report.skipped else []
    counts += [f"{report.failures:,} failed"] if report.failures else []
    notes = [f"job {id_}: {plain(why)}" for id_, why in report.failed.items()]
    command.show(answer, ", ".join(counts), notes=notes)
    if report.failures:
        raise typer.Exit(FOUND_PROBLEMS)


async def _settle_in_parts(
    operations: Operations,
    request: q.SettleLetters,
    limit: int | None,
    show: Callable[[int], None],
) -> Settled:
    """Settle letters part by part, from the newest job on."""
    whole = Settled()
    while True:
        size = PART if limit is None else min(PART, limit - whole.seen)
        part = await operations.do(replace(request, before=whole.next, limit=size))
        whole.seen += part.seen
        whole.done += part.done
        whole.skipped += part.skipped
        whole.failures += part.failures
        kept = FAILURES_KEPT - len(whole.failed)
        whole.failed |= dict(list(part.failed.items())[:kept])
        whole.next = part.next
        show(whole.seen)
        if part.next is None or whole.seen == limit:
            return whole


def _confirm(question: str) -> None:
    try:
        agreed = typer.confirm(question, err=True)
    except typer.Abort:
        agreed = False
    if not agreed:
        print_note("nothing was done; --yes does it without asking")
        raise typer.Exit(BAD_INPUT)
