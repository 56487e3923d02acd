"""`holdfast webhook`, as a person and as a script use it."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli.runtime import BAD_INPUT, FOUND_PROBLEMS
from tests.cli.commands import HOSTILE, answered, assert_harmless, on, run


@pytest.fixture
def place(tmp_path: Path) -> str:
    """A store without jobs."""
    place = str(tmp_path / "jobs.db")

    async def nothing(store: object) -> None:
        del store

    on(place, nothing)
    return place


def test_a_webhook_is_added_listed_and_removed(place: str) -> None:
    words = ("--state", "failed", "--state", "timed_out", "--queue", "mails", "--tenant", "acme")
    made = answered(place, "webhook", "add", "https://hooks.example/", *words)
    hook = made["webhook"]
    assert made["secret"].startswith("whsec_")
    assert (hook["tenant"], hook["queue"]) == ("acme", "mails")
    assert hook["states"] == ["failed", "timed_out"]
    assert answered(place, "webhook", "ls") == {"webhooks": [hook], "next": None}
    assert answered(place, "webhook", "ls", "--tenant", "other")["webhooks"] == []
    assert answered(place, "webhook", "rm", hook["id"])["removed_at"] is not None
    assert answered(place, "webhook", "ls")["webhooks"] == []


def test_a_person_reads_the_same(place: str) -> None:
    added = run(place, "webhook", "add", "https://hooks.example/", "--task", "mail")
    assert added.exit_code == 0, added.output
    assert "is notified when jobs of task mail end" in added.stdout
    assert "signed with whsec_" in added.stdout
    listed = run(place, "webhook", "ls").stdout
    assert "https://hooks.example/" in listed
    assert "whsec_" not in listed
    [id_] = [hook["id"] for hook in answered(place, "webhook", "ls")["webhooks"]]
    assert f"webhook {id_} is removed" in run(place, "webhook", "rm", id_).stdout
    assert "no webhooks" in run(place, "webhook", "ls").stdout


def test_a_long_list_shows_how_to_continue(place: str) -> None:
    for _ in range(3):
        answered(place, "webhook", "add", "https://hooks.example/")
    page = answered(place, "webhook", "ls", "--limit", "2")
    assert f"more: --before {page['next']}" in run(place, "webhook", "ls", "--limit", "2").stdout
    rest = answered(place, "webhook", "ls", "--before", page["next"])
    assert (len(rest["webhooks"]), rest["next"]) == (1, None)


@pytest.mark.parametrize(
    "words",
    [
        ("add", "ftp://a/"),
        ("add", "https://a/", "--state", "running"),
        ("add", "https://a/", "--state", "nonsense"),
        ("ls", "--before", "a b"),
    ],
)
def test_bad_input_is_reported(place: str, words: tuple[str, ...]) -> None:
    outcome = run(place, "webhook", *words)
    assert outcome.exit_code == BAD_INPUT, outcome.output
    assert answered(place, "webhook", "ls")["webhooks"] == []


def test_an_unknown_webhook_is_not_there(place: str) -> None:
    outcome = run(place, "webhook", "rm", "nobodys")
    assert outcome.exit_code == FOUND_PROBLEMS
    assert "no webhook 'nobodys'" in outcome.stderr


def test_hostile_names_do_not_reach_the_terminal(place: str) -> None:
    answered(place, "webhook", "add", "https://a/", "--queue", HOSTILE, "--tenant", HOSTILE)
    assert_harmless(run(place, "webhook", "ls").stdout)
    assert_harmless(run(place, "webhook", "add", "https://a/", "--task", HOSTILE).stdout)
