"""Many dead letters at once: which, how many, are you sure, how far, and what came of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

import msgspec
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
    with_store,
)
from holdfast.cli.showing import plain, say
from holdfast.errors import BadData
from holdfast.flow.letters import LetterFilter, count_letters
from holdfast.flow.redrive import Progress, Settled
from holdfast.lifecycle.states import Letter
from holdfast.ports import Store


class Filters(Struct, frozen=True, kw_only=True):
    """The filters as they were typed."""

    queue: str | None
    task: str | None
    tenant: str | None
    reason: str | None
    since: str | None
    until: str | None

    async def read(self, store: Store, letter: Letter = Letter.OPEN) -> LetterFilter:
        """Turn them into what the store is asked."""
        check_texts(queue=self.queue, task=self.task, tenant=self.tenant, reason=self.reason)
        return LetterFilter(
            letter=letter,
            tenant=self.tenant,
            queue=self.queue,
            task=self.task,
            error_code=self.reason,
            created_from=await read_time(store, self.since, "--since"),
            created_until=await read_time(store, self.until, "--until"),
        )

    @property
    def narrow(self) -> bool:
        """Whether any was given that says nothing about a single job."""
        given = (self.queue, self.task, self.reason, self.since, self.until)
        return any(one is not None for one in given)


Act: TypeAlias = Callable[[Store, LetterFilter, Progress], Awaitable[Settled]]


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

    async def count(store: Store) -> int:
        found = await count_letters(store, await asked.read(store))
        return found if bulk.limit is None else min(found, bulk.limit)

    async def work(store: Store) -> Settled:
        wanted = await asked.read(store)
        with counting(bulk.verb, total, quiet=bulk.as_json) as progress:
            return await act(store, wanted, progress)

    total = run(with_store(url, count))
    if bulk.dry_run:
        _say_dry(bulk, total)
        return
    if total and not bulk.yes:
        _confirm(bulk, total)
    report = run(with_store(url, work))
    _say_settled(bulk, report)
    if report.failures:
        raise typer.Exit(FOUND_PROBLEMS)


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
        print_json(msgspec.to_builtins(report))
        return
    told = [f"{report.done:,} {bulk.done}"]
    if report.skipped:
        told.append(f"{report.skipped:,} settled by others first")
    if report.failures:
        told.append(f"{report.failures:,} failed")
    say(out, ", ".join(told))
    for id_, why in report.failed.items():
        say(err, f"job {id_}: {plain(why)}")
