"""Every command that has `--json`: one meaning of `id`, times of RFC 3339, spans with a unit.

`json_fields.txt` keeps the fields of each answer and their types.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import typer
from msgspec.structs import replace

from holdfast.cli.main import app
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.states import State
from holdfast.ports.models import LogEntry
from holdfast.ports.store import Store
from holdfast.testing.factories import announcement, new_upload, owner_of
from holdfast.testing.store_actions import do, job_in, running_job, submit_one
from tests.cli.commands import dead, on, run
from tests.cli.surface import commands, fields
from tests.support.json_rules import broken_rules

ANSWERS: dict[str, tuple[str, ...]] = {
    "approvals": (),
    "approve": ("awaited",),
    "artifacts": ("order-4",),
    "cancel": ("order-1",),
    "deny": ("awaited",),
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
    "clean": ("--dry-run",),
    "policy apply": ("--remove",),
    "policy explain": ("judged",),
    "policy history": (),
    "policy show": (),
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
    "run": ("--shell", "make", "--detach"),
    "seal off": (),
    "seal on": (),
    "show": ("order-2",),
    "signal": ("order-1", "go"),
    "submit": ("mail", "to=ann", "--job-id", "order-9"),
    "token create": ("ci", "--role", "viewer", "--expires", "7d"),
    "token ls": (),
    "unhold": ("held",),
    "uploads list": (),
    "uploads show": ("u1",),
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
POLICY = """
version = 1
default = "allow"
[[rule]]
id = "two-people"
match = { labels = { env = "prod" } }
then = "approve"
reason = "it is serious"
approve = { count = 2, expires = "1h" }
"""
FIELDS = Path(__file__).with_name("json_fields.txt")
WITHOUT = {
    "config": "has settings of commands, as they are written",
    "policy check": "needs a file: see test_policy_commands",
    "policy simulate": "needs a file, too",
    "policy test": "needs a file, too",
    "token revoke": "needs the id of a token",
    "upload": "needs a directory: see test_upload_command",
    "webhook rm": "needs the id of a webhook",
    "uploads remove": "shows what `uploads show` does",
}


BY_MACHINE = {"doctor"}
"""Commands whose answers depend on the machine: the names of their fields are compared alone."""


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
        await submit_one(store, job_id="held", holds=("operator",))
        await store.apply_policy(POLICY, actor="control:ann")
        await submit_one(store, job_id="awaited", labels={"env": "prod"})
        await submit_one(store, job_id="judged")
        await submit_one(store, job_id="parent")
        await store.announce(announcement())
        await store.add_upload(new_upload(id="u1"))

    on(place, some)
    return folder


def kept_fields() -> dict[str, set[str]]:
    """Read the fields that each answer must have, by the words that are asked."""
    kept: dict[str, set[str]] = {}
    words = ""
    for line in FIELDS.read_text("utf-8").splitlines():
        if line.startswith(" "):
            kept[words].add(line.strip())
        else:
            words = line
            kept[words] = set()
    return kept


def check(place: str, words: tuple[str, ...], *, name: tuple[str, ...] | None = None) -> None:
    outcome = run(place, *words, "--json")
    assert outcome.exit_code in (0, 1), outcome.output
    answers = [json.loads(line) for line in outcome.stdout.splitlines()]
    assert answers, outcome.stderr
    for answer in answers:
        assert broken_rules(answer) == []
    found = {field for answer in answers for field in fields(answer)}
    kept = kept_fields()[" ".join(words if name is None else name)]
    if words[0] in BY_MACHINE:
        found, kept = ({field.split()[0] for field in each} for each in (found, kept))
    assert found == kept


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
        check(place, (kind, removed, id_), name=(kind, removed, "ID"))
