"""What the tests of commands share: calling one, and jobs that it can be asked about."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from typer.testing import CliRunner, Result

from holdfast.cli.main import app
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Job
from holdfast.ports.store import Store
from holdfast.testing.factories import owner_of
from holdfast.testing.store_actions import do, running_job
from holdfast.wiring import opened, read_address

R = TypeVar("R")

HOSTILE = "\x1b[2J\x1b]0;owned\x07\r\n\u202eevil\x9b31m[red]:boom:"
"""Clears the screen, sets the title, goes back, breaks lines, turns direction, plays markup."""


def run(place: str, *words: str, answer: str | None = None) -> Result:
    """Call the command on a store."""
    line = [*words, "--url", place]
    return CliRunner().invoke(app, line, input=answer, env={"COLUMNS": "80"})


def answered(place: str, *words: str, code: int = 0) -> Any:
    """Call the command for a script."""
    outcome = run(place, *words, "--json")
    assert outcome.exit_code == code, outcome.output
    return json.loads(outcome.stdout)


def on(place: str, work: Callable[[Store], Awaitable[R]]) -> R:
    """Do something to the store behind the command's back."""

    async def main() -> R:
        async with opened(read_address(place)) as store:
            return await work(store)

    return asyncio.run(main())


async def dead(store: Store, *, code: str = "timeout", **fields: Any) -> Job:
    """A job in the dead letters, with a traceback."""
    body = (
        b'{"type":"ValueError","message":"no","code":"x",'
        b'"traceback":"Traceback\\n\\tat line 7\\nValueError: no"}'
    )
    job = await running_job(store, **fields)
    end = c.DeadLetter(actor=owner_of(job), error_code=code, stage="exec", body=body)
    return await do(store, job, end)


def assert_harmless(text: str) -> None:
    """Nothing that a terminal would obey is in a command's output."""
    assert "owned" in text
    assert "[red]:boom:" in text
    bad = [one for one in text if not one.isprintable() and one != "\n"]
    assert bad == []
