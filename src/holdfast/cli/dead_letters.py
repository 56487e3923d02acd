"""`holdfast dlq`: read dead letters, redrive them, put them away, one by one or by filter.

Exit codes: 0 done, 1 no such job or some of many failed, 2 bad input or not confirmed, 3 the store
failed, 4 refused (no letter, settled otherwise, erased).
"""

from __future__ import annotations

from typing import Annotated

import typer
from msgspec import Struct

from holdfast.cli.asking import (
    Before,
    JobName,
    OfQueue,
    OfTask,
    OfTenant,
    Since,
    Tenant,
    Until,
    check_texts,
    find_job,
    read_cursor,
    read_delay,
)
from holdfast.cli.running import (
    DEFAULT_URL,
    AsJson,
    Url,
    err,
    out,
    print_job,
    print_json,
    run,
    with_operations,
)
from holdfast.cli.settling import Bulk, Filters, check_choice, settle_many
from holdfast.cli.showing import (
    error_summary,
    instant,
    plain,
    say,
    say_facts,
    say_table,
    say_traceback,
    short,
)
from holdfast.errors import BadData
from holdfast.flow.letters import DeadLetter, LetterFilter, LetterPage
from holdfast.flow.redrive import Settled, Wish
from holdfast.json_format import json_of
from holdfast.lifecycle.job import Job, JobId
from holdfast.lifecycle.states import Letter
from holdfast.operations import Operations

dlq = typer.Typer(help="Dead letters: jobs that could not be done.", no_args_is_help=True)

OfState = Annotated[
    str, typer.Option("--state", help="What became of them: open, redriven or discarded.")
]
OfReason = Annotated[
    str | None, typer.Option("--reason", help="Of this reason or error code alone.")
]
PageSize = Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many at most.")]
AtMost = Annotated[
    int | None, typer.Option("--limit", min=1, help="With --all: how many at most, newest first.")
]
OneJob = Annotated[str | None, typer.Argument(metavar="JOB", help="A job_id, or the internal id.")]
All = Annotated[bool, typer.Option("--all", help="Every open letter that the filters find.")]
Yes = Annotated[bool, typer.Option("--yes", help="With --all: do not ask.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="With --all: say how many, and do nothing.")
]
Note = Annotated[str | None, typer.Option("--note", help="Why; kept in the job's history.")]
ToQueue = Annotated[str | None, typer.Option("--to-queue", help="Put the new job into this queue.")]
Retries = Annotated[
    int | None, typer.Option("--retries", min=0, help="Give the new job so many retries.")
]
Delay = Annotated[
    str | None, typer.Option("--delay", help="Let it be due only after so long: 5m, 1h30m.")
]
FromStart = Annotated[
    bool,
    typer.Option(
        "--from-start", help="Do all of it again, instead of continuing from its recorded steps."
    ),
]
Again = Annotated[
    bool, typer.Option("--again", help="Also if it was redriven or discarded before.")
]
Request = Annotated[
    str | None, typer.Option("--request-id", help="For scripts: the same one again is done once.")
]


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.add_typer(dlq, name="dlq")
    app.command("redrive")(redrive_command)


@dlq.command("list")
def list_command(
    *,
    queue: OfQueue = None,
    task: OfTask = None,
    tenant: OfTenant = None,
    reason: OfReason = None,
    since: Since = None,
    until: Until = None,
    state: OfState = "open",
    limit: PageSize = 50,
    before: Before = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List dead letters, newest job first."""
    asked = Filters(queue=queue, task=task, tenant=tenant, reason=reason, since=since, until=until)

    async def work(operations: Operations) -> LetterPage:
        wanted = await asked.read(operations, _letter(state))
        return await operations.letters(wanted, before=read_cursor(before), limit=limit)

    page = run(with_operations(url, tenant, work))
    if as_json:
        print_json(json_of(page))
    else:
        _say_page(page, state)


@dlq.command("show")
def show_command(
    job: JobName, tenant: Tenant = None, url: Url = DEFAULT_URL, as_json: AsJson = False
) -> None:
    """Show one dead letter with its error; also of a job that was denied or timed out."""

    async def work(operations: Operations) -> DeadLetter:
        return await operations.letter(await find_job(operations, job))

    letter = run(with_operations(url, tenant, work))
    if as_json:
        print_json(json_of(letter))
    else:
        _say_letter(letter)


@dlq.command("redrive")
def redrive_command(
    job: OneJob = None,
    *,
    everything: All = False,
    queue: OfQueue = None,
    task: OfTask = None,
    tenant: OfTenant = None,
    reason: OfReason = None,
    since: Since = None,
    until: Until = None,
    limit: AtMost = None,
    to_queue: ToQueue = None,
    retries: Retries = None,
    delay: Delay = None,
    from_start: FromStart = False,
    again: Again = False,
    note: Note = None,
    request_id: Request = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Submit the work of a dead or failed job again, as a new job that is linked to it.

    The new job resumes: steps, waits and children that are recorded are not done again, unless
    --from-start is given. Repeated, it returns the job that was made. Keys (job_id, dedupe_key and
    the like) stay with the dead job.
    """
    asked = Filters(queue=queue, task=task, tenant=tenant, reason=reason, since=since, until=until)
    bulk = Bulk(limit=limit, yes=yes, dry_run=dry_run, as_json=as_json)
    run(check_choice(job, everything, asked, bulk, alone=again or request_id is not None))
    how = Redrive(
        wish=run(_wish(to_queue, retries, delay, from_start)),
        again=again,
        note=note,
        request_id=request_id,
    )
    if job is None:
        settle_many(url, asked, bulk, how.some)
        return
    name = job

    async def work(operations: Operations) -> tuple[Job, Job]:
        return await how.one(operations, name)

    dead, new = run(with_operations(url, tenant, work))
    if as_json:
        print_job(new)
    else:
        how_far = "from the start" if from_start else "resuming from its recorded steps"
        say(out, f"job {plain(dead.public_id)} redriven as {new.id}, {how_far}")


class Redrive(Struct, frozen=True, kw_only=True):
    """How letters are to be redriven."""

    wish: Wish
    again: bool
    note: str | None
    request_id: str | None

    async def one(self, operations: Operations, name: str) -> tuple[Job, Job]:
        """Redrive one; gives the dead job and the new one."""
        dead = await operations.get(await find_job(operations, name))
        new = await operations.redrive(
            dead.id,
            wish=self.wish,
            again=self.again,
            reason=self.note,
            request_id=self.request_id,
        )
        return dead, new

    async def some(
        self, operations: Operations, wanted: LetterFilter, before: JobId | None, limit: int
    ) -> Settled:
        """Redrive some of what a filter finds."""
        return await operations.redrive_all(
            wanted, wish=self.wish, reason=self.note, before=before, limit=limit
        )


async def _wish(
    queue: str | None, retries: int | None, delay: str | None, from_start: bool
) -> Wish:
    check_texts(**{"to-queue": queue})
    return Wish(queue=queue, retries=retries, delay=read_delay(delay), from_start=from_start)


@dlq.command("discard")
def discard_command(
    job: OneJob = None,
    *,
    everything: All = False,
    queue: OfQueue = None,
    task: OfTask = None,
    tenant: OfTenant = None,
    reason: OfReason = None,
    since: Since = None,
    until: Until = None,
    limit: AtMost = None,
    note: Note = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Put dead letters away: the jobs stay as they are, and leave the list of open letters."""
    asked = Filters(queue=queue, task=task, tenant=tenant, reason=reason, since=since, until=until)
    words = {"verb": "discard", "done": "discarded"}
    bulk = Bulk(limit=limit, yes=yes, dry_run=dry_run, as_json=as_json, **words)
    run(check_choice(job, everything, asked, bulk))

    async def some(
        operations: Operations, wanted: LetterFilter, before: JobId | None, limit: int
    ) -> Settled:
        return await operations.discard_all(wanted, reason=note, before=before, limit=limit)

    async def one(operations: Operations) -> Job:
        return await operations.discard(await find_job(operations, job or ""), reason=note)

    if job is None:
        settle_many(url, asked, bulk, some)
        return
    dead = run(with_operations(url, tenant, one))
    if as_json:
        print_job(dead)
    else:
        say(out, f"the letter of job {plain(dead.public_id)} is discarded")


def _letter(text: str) -> Letter:
    letter = Letter.named(text)
    if letter is Letter.UNKNOWN:
        raise BadData(f"--state must be open, redriven or discarded, not {text!r}")
    return letter


def _say_page(page: LetterPage, state: str) -> None:
    titles = ("JOB", "REASON", "STAGE", "TASK", "QUEUE", "TRIES", "DEAD AT", "ERROR")
    if page.letters:
        say_table(out, titles, [_row(letter) for letter in page.letters])
    else:
        say(out, f"no {state} letters")
    for id_, why in page.unreadable.items():
        say(err, f"job {id_}: {plain(why)}")
    if page.next is not None:
        say(err, f"more: --before {page.next}")


def _row(letter: DeadLetter) -> tuple[str, ...]:
    return (
        plain(letter.job_id),
        plain(letter.reason_code),
        letter.stage,
        short(letter.task, 30),
        short(letter.queue, 20),
        str(letter.attempts),
        instant(letter.dead_at),
        short(error_summary(letter.last_error)),
    )


def _say_letter(letter: DeadLetter) -> None:
    internal = "" if letter.job_id == str(letter.id) else str(letter.id)
    settled = f"{instant(letter.settled_at)} by {plain(letter.settled_by)}"
    say_facts(
        out,
        [
            ("job", plain(letter.job_id)),
            ("id", internal),
            ("task", plain(letter.task)),
            ("queue", plain(letter.queue)),
            ("tenant", plain(letter.tenant)),
            ("state", letter.state.value),
            ("letter", "none" if letter.letter is None else letter.letter.value),
            ("settled", settled if letter.settled_at is not None else ""),
            ("redriven as", plain(letter.redriven_as)),
            ("reason", f"{plain(letter.reason_code)} at stage {letter.stage}"),
            ("tries", f"{letter.attempts} ({letter.failures} failed)"),
            ("last owner", plain(letter.last_owner)),
            ("last lease", instant(letter.last_lease_expires_at)),
            ("correlation", plain(letter.correlation_id)),
            ("submitted", instant(letter.created_at)),
            ("dead", instant(letter.dead_at)),
            ("error", plain(error_summary(letter.last_error))),
        ],
    )
    say_traceback(out, letter.last_error)
