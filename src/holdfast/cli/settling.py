"""Many dead letters at once: which, how many, are you sure, how far, and what came of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import typer
from msgspec import Struct

from holdfast.cli.asking import check_texts, read_time
from holdfast.cli.running import (
    BAD_INPUT,
    FOUND_PROBLEMS,
    counting,
    err,
    out,
    print_json,
    run,
    with_operations,
)
from holdfast.cli.showing import plain, say
from holdfast.errors import BadData
from holdfast.flow.letters import LetterFilter
from holdfast.flow.redrive import FAILURES_KEPT, Settled
from holdfast.json_format import json_of
from holdfast.lifecycle.job import JobId
from holdfast.lifecycle.states import Letter
from holdfast.operations import Operations


class Filters(Struct, frozen=True, kw_only=True):
    """The filters as they were typed."""

    queue: str | None
    task: str | None
    tenant: str | None
    reason: str | None
    since: str | None
    until: str | None

    async def read(self, operations: Operations, letter: Letter = Letter.OPEN) -> LetterFilter:
        """Turn them into what is asked for; the tenant is whoever asks."""
        check_texts(queue=self.queue, task=self.task, reason=self.reason)
        return LetterFilter(
            letter=letter,
            queue=self.queue,
            task=self.task,
            error_code=self.reason,
            created_from=await read_time(operations, self.since, "--since"),
            created_until=await read_time(operations, self.until, "--until"),
        )

    @property
    def narrow(self) -> bool:
        """Whether any was given that says nothing about a single job."""
        given = (self.queue, self.task, self.reason, self.since, self.until)
        return any(one is not None for one in given)


PART = 100
"""How many letters are settled before it is told how far it is."""
Act: TypeAlias = Callable[[Operations, LetterFilter, JobId | None, int], Awaitable[Settled]]
"""Settles some letters: those of a filter after a job, so many."""


class Bulk(Struct, frozen=True, kw_only=True):
    """How many letters are settled, how carefully, and how it is told."""

    limit: int | None
    yes: bool
    dry_run: bool
    as_json: bool
    verb: str = "redrive"
    done: str = "redriven"


async def check_choice(
    job: str | None, everything: bool, asked: Filters, bulk: Bulk, *, alone: bool = False
) -> None:
    """Refuse a command line of which one half would be silently left out."""
    if (job is None) is not everything:
        raise BadData("name one JOB, or say --all and filters")
    if job is not None and (asked.narrow or bulk.dry_run or bulk.limit is not None):
        raise BadData("filters, --limit and --dry-run go with --all, not with a JOB")
    if everything and alone:
        raise BadData("--again and --request-id are for one JOB, not for --all")


def settle_many(url: str, asked: Filters, bulk: Bulk, act: Act) -> None:
    """Count, ask, do, tell."""

    async def count(operations: Operations) -> int:
        found = await operations.count_letters(await asked.read(operations))
        return found if bulk.limit is None else min(found, bulk.limit)

    async def work(operations: Operations) -> Settled:
        wanted = await asked.read(operations)
        with counting(bulk.verb, total, quiet=bulk.as_json) as progress:
            return await _settle(operations, wanted, bulk.limit, act, progress)

    total = run(with_operations(url, asked.tenant, count))
    if bulk.dry_run:
        _say_dry(bulk, total)
        return
    if total and not bulk.yes:
        _confirm(bulk, total)
    report = run(with_operations(url, asked.tenant, work))
    _say_settled(bulk, report)
    if report.failures:
        raise typer.Exit(FOUND_PROBLEMS)


async def _settle(
    operations: Operations,
    wanted: LetterFilter,
    limit: int | None,
    act: Act,
    progress: Callable[[int], None],
) -> Settled:
    """Settle part by part, from the newest job on."""
    whole = Settled()
    while True:
        size = PART if limit is None else min(PART, limit - whole.seen)
        part = await act(operations, wanted, whole.next, size)
        _add(whole, part)
        progress(whole.seen)
        if part.next is None or whole.seen == limit:
            return whole


def _add(whole: Settled, part: Settled) -> None:
    whole.seen += part.seen
    whole.done += part.done
    whole.skipped += part.skipped
    whole.failures += part.failures
    kept = FAILURES_KEPT - len(whole.failed)
    whole.failed |= dict(list(part.failed.items())[:kept])
    whole.next = part.next


def _say_dry(bulk: Bulk, total: int) -> None:
    if bulk.as_json:
        print_json({"would": bulk.verb, "letters": total})
    else:
        say(out, f"would {bulk.verb} {total:,} dead letters")


def _confirm(bulk: Bulk, total: int) -> None:
    try:
        agreed = typer.confirm(f"{bulk.verb} {total:,} dead letters?", err=True)
    except typer.Abort:
        agreed = False
    if not agreed:
        say(err, "nothing was done; --yes does it without asking")
        raise typer.Exit(BAD_INPUT)


def _say_settled(bulk: Bulk, report: Settled) -> None:
    if bulk.as_json:
        told = json_of(report)
        del told["next"]
        print_json(told)
        return
    words = [f"{report.done:,} {bulk.done}"]
    if report.skipped:
        words.append(f"{report.skipped:,} settled by others first")
    if report.failures:
        words.append(f"{report.failures:,} failed")
    say(out, ", ".join(words))
    for id_, why in report.failed.items():
        say(err, f"job {id_}: {plain(why)}")
