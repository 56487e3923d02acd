"""`holdfast doctor`: whether everything is as it must be, and how to mend what is not.

Exit codes: 0 nothing is broken, though there may be warnings; 1 something is.
"""

from __future__ import annotations

import time

import typer

from holdfast.cli.running import (
    DEFAULT_URL,
    FOUND_PROBLEMS,
    AsJson,
    Url,
    err,
    is_server,
    out,
    print_json,
    run,
    with_operations,
    with_store,
)
from holdfast.cli.showing import plain, say
from holdfast.config import shown
from holdfast.errors import HoldfastError
from holdfast.json_format import json_of
from holdfast.operations import Operations
from holdfast.services.doctor import (
    examine_clock,
    examine_quarantine,
    examine_sweeps,
    examine_times,
    examine_work,
)
from holdfast.stores.findings import Finding, Verdict, fine, problem
from holdfast.wiring import examine, read_address

MARKS = {Verdict.OK: "ok     ", Verdict.WARNING: "warning", Verdict.PROBLEM: "problem"}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(doctor)


def doctor(url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """Check database, migrations, clock, disk and workers, and say how to mend what is wrong.

    Changes nothing. Of a server it checks what can be seen through it.
    """
    found = run(_server(url) if is_server(url) else _store(url))
    if as_json:
        print_json({"findings": [json_of(one) for one in found]})
    else:
        say(err, f"examining {plain(shown('url', url))}")
        for one in found:
            _say(one)
    if any(one.verdict is Verdict.PROBLEM for one in found):
        raise typer.Exit(FOUND_PROBLEMS)


def _say(finding: Finding) -> None:
    say(out, f"{MARKS[finding.verdict]}  {finding.check}: {plain(finding.text)}")
    if finding.mend is not None:
        say(out, f"         → {plain(finding.mend)}")


async def _store(url: str) -> list[Finding]:
    found = await examine(read_address(url))
    if any(one.verdict is Verdict.PROBLEM for one in found):
        # What follows needs a store that can be opened.
        return found
    try:
        found.append(await with_store(url, examine_sweeps))
        found.append(await with_store(url, examine_clock))
        found.append(await with_store(url, examine_times))
        found.append(await with_store(url, examine_quarantine))
        return found + await with_operations(url, None, _work)
    except HoldfastError as error:
        text = f"{error.code}: {error}"
        return [*found, problem("database", text, "see the code in docs/http.md, under Codes")]


async def _server(url: str) -> list[Finding]:
    try:
        found = await with_operations(url, None, _work)
    except HoldfastError as error:
        mend = "see that it runs (`holdfast serve`), the address, and the token in HOLDFAST_TOKEN"
        return [problem("server", f"{error.code}: {error}", mend)]
    return [fine("server", "it answers"), *found]


async def _work(operations: Operations) -> list[Finding]:
    # The one question that is about this machine's clock.
    own_clock = time.time()  # noqa: TID251
    return await examine_work(operations, own_clock)
