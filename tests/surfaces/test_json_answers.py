"""Every command that has `--json`: one meaning of `id`, times of RFC 3339, spans with a unit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from msgspec.structs import replace

from holdfast.cli.main import app
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.policy import Policy
from holdfast.lifecycle.states import State
from holdfast.ports import LogEntry, Store
from holdfast.testing.acts import do, job_in, running_job, submit_one
from holdfast.testing.factories import announcement, owner_of
from tests.support.json_rules import broken_rules
from tests.surfaces.commands import dead, on, run

ANSWERS: dict[str, tuple[str, ...]] = {
    "cancel": ("order-1",),
    "dlq discard": ("order-4",),
    "dlq list": (),
    "dlq redrive": ("order-5",),
    "dlq show": ("order-4",),
    "doctor": (),
    "epoch bump": (),
    "epoch show": (),
    "hold": ("order-1",),
    "limits": (),
    "logs": ("order-2",),
    "ls": (),
    "migrate": (),
    "purge": ("--dry-run",),
    "quarantine list": (),
    "quarantine release": ("--all",),
    "queues list": (),
    "queues pause": ("default",),
    "queues resume": ("default",),
    "rebuild": ("--yes",),
    "reconcile": ("--once",),
    "redrive": ("order-5",),
    "reschedule": ("order-1", "--in", "5m"),
    "resolve": ("order-3", "charge", "--happened"),
    "seal off": (),
    "seal on": (),
    "show": ("order-2",),
    "signal": ("order-1", "go"),
    "submit": ("mail", "to=ann", "--job-id", "order-9"),
    "token create": ("ci", "--role", "viewer", "--expires", "7d"),
    "token ls": (),
    "unhold": ("held",),
    "verify": (),
    "watch": ("order-4",),
    "webhook add": ("https://hooks.example/jobs",),
    "webhook ls": (),
    "why": ("order-2",),
    "workers": (),
}
SEVERAL: tuple[tuple[str, ...], ...] = (
    *((("why", name)) for name in ("order-1", "order-3", "order-4", "held", "parent")),
    ("show", "parent", "--tree"),
    ("show", "order-6"),
    ("purge", "--log"),
    ("reconcile", "--repair-times"),
    ("dlq", "redrive", "--all", "--dry-run"),
    ("dlq", "redrive", "--all", "--yes"),
)
"""More that commands may answer."""
WITHOUT = {
    "config": "has settings of commands, as they are written",
    "token revoke": "needs the id of a token",
    "webhook rm": "needs the id of a webhook",
}


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Go through all commands, by the words that they are called by."""
    for name, one in group.commands.items():
        if hasattr(one, "commands"):
            yield from commands(one, (*path, name))
        else:
            yield " ".join((*path, name)), one


def test_every_command_with_json_is_tried() -> None:
    tree = typer.main.get_command(app)
    with_json = {
        name for name, one in commands(tree) if any("--json" in each.opts for each in one.params)
    }
    assert with_json - WITHOUT.keys() == ANSWERS.keys()


@pytest.fixture
def place(made: Path, tmp_path: Path) -> str:
    """A store with some of everything, of the test's own."""
    shutil.copytree(made, tmp_path, dirs_exist_ok=True)
    return str(tmp_path / "jobs.db")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with some of everything that has an id, a time or a span."""
    folder = tmp_path_factory.mktemp("answers")
    place = str(folder / "jobs.db")

    async def some(store: Store) -> None:
        await submit_one(store, job_id="order-1", policy=Policy(timeout=1_500_000))
        job = await running_job(store, job_id="order-2")
        await do(store, job, c.Progress(actor=owner_of(job), body=b'{"done":1,"of":2}'))
        line = LogEntry(id=job.id, attempt=1, at=10**15, level=20, message="hello")
        await store.keep_logs([line])
        asks = await running_job(store, job_id="order-3")
        await do(store, asks, c.Wait(actor=owner_of(asks), signal="resolve:charge"))
        await dead(store, job_id="order-4")
        await dead(store, job_id="order-5")
        terms = await job_in(store, State.CLAIMED, job_id="order-6")
        once = replace(terms.policy, max_attempts=1)
        await do(store, terms, c.CorrectTerms(actor=owner_of(terms), policy=once))
        await submit_one(store, job_id="held", held_by="operator")
        await submit_one(store, job_id="parent")
        await store.announce(announcement())

    on(place, some)
    return folder


def check(place: str, words: tuple[str, ...]) -> None:
    outcome = run(place, *words, "--json")
    assert outcome.exit_code in (0, 1), outcome.output
    lines = outcome.stdout.splitlines()
    assert lines, outcome.stderr
    for line in lines:
        assert broken_rules(json.loads(line)) == []


@pytest.mark.parametrize("command", ANSWERS)
def test_an_answer_keeps_the_rules(place: str, command: str) -> None:
    check(place, (*command.split(), *ANSWERS[command]))


@pytest.mark.parametrize("words", SEVERAL, ids=" ".join)
def test_other_answers_keep_the_rules(place: str, words: tuple[str, ...]) -> None:
    check(place, words)


def test_what_was_made_is_removed_by_its_id(place: str) -> None:
    for kind, made, removed in (("token", "create", "revoke"), ("webhook", "add", "rm")):
        words = ANSWERS[f"{kind} {made}"]
        answer = json.loads(run(place, kind, made, *words, "--json").stdout)
        id_ = answer.get("webhook", answer.get("about"))["id"]
        check(place, (kind, removed, id_))
