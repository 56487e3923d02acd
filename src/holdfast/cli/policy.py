"""`holdfast policy`: check, test, explain, simulate and apply the rules that jobs are judged by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from holdfast.admission.book import Book
from holdfast.admission.cases import read_cases, run_cases
from holdfast.admission.simulate import Changed, RecordedBirth, Simulation, simulate
from holdfast.admission.verdicts import Look, explain
from holdfast.cli.options import (
    AsJson,
    JobCommand,
    JobName,
    Reason,
    ServerCommand,
    StoreCommand,
    check_texts,
    read_time,
)
from holdfast.cli.output import (
    align_table,
    facts,
    plain,
    print_answer,
    progress_bar,
    short,
    time_text,
)
from holdfast.cli.runtime import FOUND_PROBLEMS, find_operator
from holdfast.durations import micros
from holdfast.errors import BadData
from holdfast.flow.policy_book import current_book
from holdfast.operations import requests as q
from holdfast.operations.json_format import json_of
from holdfast.operations.local import LocalOperations
from holdfast.operations.policy_view import JobPolicy, PolicyBookView, WantedPolicy
from holdfast.operations.session import StoreSession
from holdfast.ports.store import Store
from holdfast.queries.births import read_births
from holdfast.services.policy_watch import read_policy_file, read_text_file

VERDICTS_CHANGE = 3
"""The exit code of `simulate` where a verdict would change."""
DIGITS = 12
"""How many digits of a digest a person is shown."""

PolicyFile = Annotated[Path, Argument(metavar="FILE", help="The rules, in TOML.")]


def check_policy(file: PolicyFile, *, as_json: AsJson = False) -> None:
    """Check a file of rules without applying it. Needs no store."""
    book = read_policy_file(file)
    answer = {"digest": book.digest, "rules": len(book.rules), "default": book.default.value}
    line = f"{plain(file)} is valid: {_describe(book)}"
    print_answer(answer, line, as_json=as_json)


def _describe(book: Book) -> str:
    rules = "1 rule" if len(book.rules) == 1 else f"{len(book.rules)} rules"
    return f"{rules}, then {book.default}; digest {book.digest[:DIGITS]}"


def run_policy_cases(
    file: PolicyFile,
    cases: Annotated[
        Path, Argument(metavar="CASES", help="Jobs and what to expect, as [[case]] in TOML.")
    ],
    *,
    as_json: AsJson = False,
) -> None:
    """Test a file of rules on cases. Needs no store. Exit code 1 if a case fails."""
    book, wanted = read_policy_file(file), read_cases(read_text_file(cases), str(cases))
    failures = run_cases(book, wanted)
    rows = [
        (short(one.name), plain(one.expected), plain(one.found), short(one.reason))
        for one in failures
    ]
    table = align_table(("CASE", "EXPECTED", "FOUND", "REASON"), rows) if rows else []
    passed = f"{len(wanted) - len(failures)} of {len(wanted)} cases pass"
    answer = {"cases": len(wanted), "failures": failures}
    print_answer(json_of(answer) if as_json else None, *table, passed, as_json=as_json)
    if failures:
        raise typer.Exit(FOUND_PROBLEMS)


def explain_policy(
    command: JobCommand,
    job: JobName,
    *,
    policy: Annotated[
        Path | None, Option("--policy", help="Explain by this file instead of what judged it.")
    ] = None,
) -> None:
    """Show what was decided on a job, and how each rule sees it."""
    book = None if policy is None else read_policy_file(policy)
    found = command.do(q.ExplainPolicy(job=job))
    looks, rules = found.looks, found.rules
    if book is not None:
        at = found.decisions[-1].at if found.decisions else None
        looks, rules = explain(book, found.variables, now=at), book.digest
    answer = json_of(found) | {"looks": json_of(looks), "rules": rules}
    command.show(answer, *facts(decision_facts(found)), *_look_lines(looks, rules))


def decision_facts(found: JobPolicy) -> Iterator[tuple[str, str]]:
    """Return what was decided on a job, by whom, and what it still awaits."""
    yield "job", plain(found.job_id)
    for one in found.decisions:
        by = f" by rule {one.rule}" if one.rule else " by default"
        who = f", {one.decided_by}" if one.decided_by else ""
        why = f": {one.reason}" if one.reason else ""
        yield "decided", plain(f"{time_text(one.at)} {one.verdict}{by} ({one.actor}{who}){why}")
    yield "never judged", "" if found.decisions else "no policy was applied when it was submitted"
    yield "asked for", plain(", ".join(f"{name} {value}" for name, value in found.asked.items()))
    for given in found.approvals:
        why = f": {given.reason}" if given.reason else ""
        yield "approved", plain(f"{time_text(given.at)} {given.by}{why}")
    if found.missing:
        expiry = "" if found.expires_at is None else f" until {time_text(found.expires_at)}"
        yield "awaits", f"{found.missing} more approvals{expiry}"


def _look_lines(looks: list[Look], rules: str | None) -> list[str]:
    if not looks:
        return ["", "no policy is applied"]
    rows = [
        (plain(one.rule or "default"), "yes" if one.matched else "no", short(one.why, 200))
        for one in looks
    ]
    return ["", f"policy {(rules or '')[:DIGITS]}", *align_table(("RULE", "MATCHES", "WHY"), rows)]


def apply_policy(
    command: ServerCommand,
    file: Annotated[Path | None, Argument(metavar="[FILE]", help="The rules, in TOML.")] = None,
    *,
    remove: Annotated[
        bool, Option("--remove", help="Remove the policy: nothing is judged any more.")
    ] = False,
    reason: Reason = None,
) -> None:
    """Apply a file of rules: from now on every new job is judged by it."""
    if (file is None) != remove:
        raise BadData("give either a FILE or --remove")
    check_texts(reason=reason)
    # Checked here as well: the message names the file, and its line.
    text = None if file is None else read_policy_file(file).text
    applied = command.do(q.ApplyPolicy(policy=WantedPolicy(text=text, reason=reason)))
    if applied.digest is None:
        command.show(applied, "no policy is applied: nothing is judged")
    else:
        command.show(applied, f"policy {applied.digest[:DIGITS]} is applied")


def show_policy(
    command: ServerCommand,
    *,
    book: Annotated[
        str | None, Option("--book", metavar="DIGEST", help="One that was applied before.")
    ] = None,
) -> None:
    """Show the policy that is applied: its text, who applied it, and when."""
    check_texts(book=book)
    shown = command.do(q.GetPolicy(digest=book))
    if shown.digest is None:
        command.show(shown, "no policy is applied: nothing is judged")
        return
    # The text alone on stdout, so that it can be edited and applied again.
    lines = [plain(line.expandtabs(4)) for line in (shown.text or "").splitlines()]
    command.show(shown, *lines, notes=facts(_book_facts(shown)))


def _book_facts(shown: PolicyBookView) -> Iterable[tuple[str, str]]:
    yield "digest", shown.digest or ""
    yield "applied", f"{time_text(shown.applied_at)} by {plain(shown.applied_by)}"
    yield "reason", plain(shown.reason)
    yield "current", "yes" if shown.is_current else "no"


def list_policies(
    command: ServerCommand,
    limit: Annotated[int, Option(min=1, max=1000, help="Maximum entries to list.")] = 100,
) -> None:
    """List which policy was applied or removed when, and by whom, newest first."""
    found = command.do(q.ListPolicies(limit=limit))
    rows = [
        (
            time_text(one.at),
            one.type,
            "–" if one.digest is None else one.digest,
            plain(one.actor),
            short(one.reason),
        )
        for one in found.events
    ]
    titles = ("AT", "WHAT", "DIGEST", "BY", "REASON")
    command.show(found, *(align_table(titles, rows) if rows else ["no policy was ever applied"]))


def simulate_policy(
    command: StoreCommand,
    file: PolicyFile,
    *,
    last: Annotated[int, Option(min=1, max=1_000_000, help="How many of the newest jobs.")] = 1000,
    since: Annotated[
        str | None, Option(help="Only those submitted since: 2h, 7d, or 2026-11-16T10:00 (UTC).")
    ] = None,
    tenant: Annotated[str | None, Option(help="Only jobs of this tenant.")] = None,
) -> None:
    """Judge the newest jobs by the current policy and by a file, and show what would change.

    Writes nothing. Exit code 3 if a verdict would change.
    """
    check_texts(tenant=tenant)
    book = read_policy_file(file)

    async def work(store: Store) -> Simulation:
        operations = LocalOperations(StoreSession(store), name=find_operator().name, tenant=None)
        start = await read_time(operations, since, "--since")
        births: list[RecordedBirth] = []
        with progress_bar("jobs", last, quiet=command.as_json) as show:
            found = read_births(
                store,
                await current_book(store),
                tenant=tenant,
                since=None if start is None else micros(start),
                limit=last,
            )
            async for one in found:
                births.append(one)
                show(len(births))
        return simulate(book, births)

    result = command.on_store(work)
    command.show(result, *_simulation_lines(result))
    if result.changed:
        raise typer.Exit(VERDICTS_CHANGE)


def _simulation_lines(result: Simulation) -> list[str]:
    counts = ", ".join(f"{count:,} {name}" for name, count in sorted(result.verdicts.items()))
    lines = [f"{result.judged:,} jobs judged by {result.rules[:DIGITS]}: {counts or 'none'}"]
    if not result.changed:
        return [*lines, "no verdict changes"]
    titles = ("RULE", "NOW", "THEN", "JOBS", "SUCH AS")
    return [*lines, *align_table(titles, map(_changed_row, result.changed))]


def _changed_row(one: Changed) -> tuple[str, ...]:
    examples = ", ".join(map(plain, one.examples))
    return (plain(one.rule or "default"), one.before, one.after, f"{one.count:,}", examples)
