"""The commands about jobs on a server's address: they print what they print on a store."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.runtime import BAD_INPUT, FOUND_PROBLEMS, REFUSED, STORE_FAILED
from holdfast.ports.store import Store
from holdfast.wiring import migrate, read_address
from tests.cli.commands import HOSTILE, answered, assert_harmless, dead, on, run
from tests.support.lifeline import free_port
from tests.support.serving import Served


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A store with jobs in it, and the address of a server of it."""
    directory = tmp_path_factory.mktemp("served")
    place = str(directory / "jobs.db")
    asyncio.run(migrate(read_address(place)))
    on(place, lambda store: dead(store, job_id="died", queue="bank", correlation_id=HOSTILE))
    on(place, lambda store: dead(store, job_id="lost/1", task=HOSTILE, tenant="acme"))
    with Served(place, Path(directory)) as served:
        served.start()
        yield place, served.url


READS = [
    "ls",
    "ls --state dead_lettered --queue bank --since 1h",
    "ls --tenant acme",
    "show died",
    "show lost/1 --tenant acme",
    "show died --tree",
    "why died",
    "dlq list",
    "dlq list --tenant acme --reason timeout --until 0s",
    "dlq show died",
    "dlq redrive --all --dry-run",
    "queues list",
    "queues list --tenant acme",
    "workers",
]


@pytest.mark.parametrize("line", READS)
def test_a_server_is_asked_as_a_store_is(both: tuple[str, str], line: str) -> None:
    place, url = both
    at_hand, remote = run(place, *line.split()), run(url, *line.split())
    assert remote.exit_code == at_hand.exit_code == 0, remote.output
    assert _ageless(remote.stdout) == _ageless(at_hand.stdout)
    answer = [_known(json.loads(run(one, *line.split(), "--json").stdout)) for one in both]
    assert answer[0] == answer[1]


def _known(answer: Any) -> Any:
    """Leave out the moment of asking, and what of a record only its store knows."""
    own = ("now", "beats", "epoch", "key_kinds", "late_results", "result_digest", "result_ptr")
    if isinstance(answer, dict):
        return {name: _known(value) for name, value in answer.items() if name not in own}
    if isinstance(answer, list):
        return [_known(one) for one in answer]
    return _ageless(answer) if isinstance(answer, str) else answer


def _ageless(text: str) -> str:
    """Leave out how long ago something was: one of the two is asked later."""
    return re.sub(r"\d[\w. ]* ago", "some time ago", text)


def test_a_job_lives_through_a_server(both: tuple[str, str]) -> None:
    place, url = both
    made = answered(url, "submit", "mail", "to=ann", "times:=3", "--job-id", "a/b")
    assert (made["job_id"], made["created"], made["state"]) == ("a/b", True, "queued")
    again = answered(url, "submit", "mail", "to=ann", "times:=3", "--job-id", "a/b")
    assert again["internal_id"] == made["internal_id"]
    assert answered(place, "show", "a/b")["events"][0]["payload"] == {"to": "ann", "times": 3}
    assert answered(url, "signal", "a/b", "go", "--payload", '{"x": 1}')["kept"] == 1
    assert answered(url, "cancel", "a/b", "--reason", "enough")["state"] == "cancelled"
    assert run(url, "cancel", "died").exit_code == REFUSED
    assert answered(url, "queues", "pause", "bank/2", "--reason", "x")["paused"] is True
    assert answered(url, "queues", "resume", "bank/2")["paused"] is False


def test_letters_are_settled_through_a_server(
    both: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, url = both
    monkeypatch.setattr("holdfast.cli.dlq.PART", 1)

    async def mass(store: Store) -> None:
        for number in range(4):
            await dead(store, queue="mass", job_id=f"m{number}")

    on(place, mass)
    assert answered(url, "dlq", "discard", "m3")["letter"] == "discarded"
    one = answered(url, "redrive", "m0", "--to-queue", "slow", "--delay", "1h")
    assert answered(place, "show", one["id"])["job"]["queue"] == "slow"
    report = answered(url, "dlq", "redrive", "--all", "--queue", "mass", "--yes")
    assert (report["seen"], report["done"], report["failed"]) == (2, 2, {})
    assert answered(url, "dlq", "discard", "--all", "--queue", "mass", "--yes")["seen"] == 0


def test_hostile_names_from_a_server_are_harmless(both: tuple[str, str]) -> None:
    _, url = both
    assert_harmless(run(url, "show", "lost/1", "--tenant", "acme").output)
    assert_harmless(run(url, "show", "died").output)
    assert_harmless(run(url, "show", HOSTILE).output)


def test_errors_of_a_server_have_the_exit_codes_of_a_store(both: tuple[str, str]) -> None:
    _, url = both
    missing = run(url, "show", "nix")
    assert (missing.exit_code, "no_such_job" in missing.output) == (FOUND_PROBLEMS, True)
    assert run(url, "ls", "--since", "soon").exit_code == BAD_INPUT
    assert run(url, "submit", "mail", "--delay", "soon").exit_code == BAD_INPUT
    assert run(url, "dlq", "redrive", "nix").exit_code == FOUND_PROBLEMS
    assert run(url, "verify").exit_code == BAD_INPUT
    inside = run(url, "webhook", "add", "https://127.0.0.1/")
    assert (inside.exit_code, "address_blocked" in inside.output) == (BAD_INPUT, True)


def test_a_server_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.cli.runtime.PATIENCE_SECONDS", 0.01)
    outcome = run(f"http://127.0.0.1:{free_port()}", "ls")
    assert outcome.exit_code == STORE_FAILED
    assert "server_unavailable" in outcome.output
    assert run("http://a:b@host", "ls").exit_code == BAD_INPUT
