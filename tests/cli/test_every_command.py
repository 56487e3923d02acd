"""What holds of every command: an app instead of an address, and short ids of jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer

from holdfast.cli.main import app
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Job
from holdfast.ports.store import Store
from holdfast.testing.factories import owner_of
from holdfast.testing.store_actions import do, running_job, submit_one
from tests.cli.commands import answered, dead, on, run
from tests.cli.surface import commands

TREE = typer.main.get_command(app)
ON_A_STORE = [
    pytest.param(one, id=name)
    for name, one in commands(TREE)
    if any("--url" in each.opts for each in one.params)
]
OF_A_JOB = {
    name
    for name, one in commands(TREE)
    if any("JOB" in (each.metavar or "") for each in one.params)
}
WORDS: dict[str, tuple[str, ...]] = {
    "dlq discard": (),
    "dlq redrive": (),
    "dlq show": (),
    "redrive": (),
    "signal": ("go",),
    "resolve": ("charge", "--happened"),
    "reschedule": ("--in", "1h"),
}
"""What a command takes beside the job."""
ASK_ALWAYS = 'version = 1\ndefault = "allow"\n[[rule]]\nid = "ask"\nthen = "approve"\n'
DEAD = {"artifacts", "dlq discard", "dlq redrive", "dlq show", "redrive", "watch"}


@pytest.mark.parametrize("command", ON_A_STORE)
def test_a_command_on_a_store_takes_an_app_instead_of_the_address(command: Any) -> None:
    options = {one for each in command.params for one in each.opts}
    assert {"--app", "app"} & options


def test_the_commands_that_take_a_job_are_known() -> None:
    assert {"cancel", "show", "why", "logs", "watch", "hold", "dlq show", *WORDS} <= OF_A_JOB


@pytest.mark.parametrize("command", sorted(OF_A_JOB))
def test_a_job_is_named_by_the_start_of_its_id(tmp_path: Path, command: str) -> None:
    place = str(tmp_path / "jobs.db")

    async def made(store: Store) -> Job:
        if command in DEAD:
            return await dead(store)
        if command == "resolve":
            job = await running_job(store)
            return await do(store, job, c.Wait(actor=owner_of(job), signal="resolve:charge"))
        if command in ("approve", "deny"):
            await store.apply_policy(ASK_ALWAYS, actor="control:ann")
        holds = ("operator",) if command == "unhold" else ()
        return await submit_one(store, holds=holds)

    job = on(place, made)
    outcome = run(place, *command.split(), str(job.id)[:13], *WORDS.get(command, ()))
    assert outcome.exit_code == (1 if command == "watch" else 0), outcome.output


def test_a_parent_is_named_by_the_start_of_its_id(tmp_path: Path) -> None:
    place = str(tmp_path / "jobs.db")
    parent = on(place, submit_one)
    made = answered(place, "submit", "mail", "--parent", str(parent.id)[:13])
    shown = answered(place, "show", made["job_id"])["job"]
    assert shown["parent_id"] == str(parent.id)
