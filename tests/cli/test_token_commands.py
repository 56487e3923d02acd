"""`holdfast token`: made at a store or through a server, listed without secrets, revoked."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pytest

from holdfast.cli.runtime import BAD_INPUT, FOUND_PROBLEMS, REFUSED
from tests.cli.commands import run
from tests.cli.test_serving import running, typed


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A new store."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    assert run(url, "migrate").exit_code == 0
    return url


def test_a_token_is_made_listed_and_revoked(store: str) -> None:
    fields = ("--role", "worker", "--tenant", "mine", "--queues", "b,a", "--expires", "30d")
    made = run(store, "token", "create", "ci", *fields)
    assert made.exit_code == 0, made.output
    token = made.stdout.strip()
    assert token.startswith("hf_")
    assert "It is not shown again" in made.stderr
    id_ = token.split("_")[1]

    [listed] = json.loads(run(store, "token", "ls", "--json").stdout)["tokens"]
    assert (listed["id"], listed["name"], listed["role"]) == (id_, "ci", "worker")
    assert (listed["tenant"], listed["queues"]) == ("mine", ["a", "b"])
    assert listed["expires_at"] > listed["created_at"]
    assert listed["created_by"].startswith("control:")
    text = run(store, "token", "ls").stdout
    assert id_ in text
    assert token.split("_")[2] not in text

    assert "is revoked" in run(store, "token", "revoke", id_).stdout
    assert run(store, "token", "ls").stdout == "no tokens\n"
    [revoked] = json.loads(run(store, "token", "ls", "--all", "--json").stdout)["tokens"]
    assert revoked["revoked_at"] is not None
    assert revoked["revoked_by"].startswith("control:")


def test_a_token_may_end_at_a_date(store: str) -> None:
    fields = ("--role", "viewer", "--expires", "2099-01-31T10:00")
    made = run(store, "token", "create", "ci", *fields, "--json")
    assert json.loads(made.stdout)["about"]["expires_at"].startswith("2099-01-31T10:00:0")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("create", "ci", "--role", "viewer", "--expires", "soon"), BAD_INPUT),
        (("create", "ci", "--role", "viewer", "--expires", "2020-01-01"), BAD_INPUT),
        (("create", "ci", "--role", "root"), BAD_INPUT),
        (("create", "", "--role", "viewer"), BAD_INPUT),
        (("create", "ci", "--role", "viewer", "--queues", ","), BAD_INPUT),
        (("create", "ci"), BAD_INPUT),
        (("revoke", "0" * 20), FOUND_PROBLEMS),
        (("revoke", "nonsense"), FOUND_PROBLEMS),
    ],
    ids=str,
)
def test_invalid_options_are_refused(store: str, arguments: tuple[str, ...], code: int) -> None:
    assert run(store, "token", *arguments).exit_code == code
    assert json.loads(run(store, "token", "ls", "--json").stdout)["tokens"] == []


def test_a_hostile_name_cannot_reach_the_terminal(store: str) -> None:
    run(store, "token", "create", "\x1b[31mred\u202e", "--role", "viewer")
    text = run(store, "token", "ls").stdout
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_with_a_token_it_serves_beyond_this_machine_and_makes_more_through_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert typed(tmp_path, "migrate").returncode == 0
    refused = typed(tmp_path, "serve", "--host", "0.0.0.0", "--port", "0")
    assert refused.returncode == 1
    assert "no_tokens" in refused.stderr
    assert "holdfast token create" in refused.stderr
    admin = typed(tmp_path, "token", "create", "root", "--role", "admin").stdout.strip()
    with running(tmp_path, "serve", "--host", "0.0.0.0") as served:
        url = str(served.http.base_url)
        assert served.http.get("/v1/jobs").status_code == 401
        stranger = typed(tmp_path, "token", "ls", "--url", url)
        assert stranger.returncode == REFUSED
        monkeypatch.setenv("HOLDFAST_TOKEN", admin)
        made = typed(tmp_path, "token", "create", "ci", "--role", "viewer", "--url", url)
        assert made.returncode == 0, made.stderr
        seen = httpx.get(
            f"{url}/v1/jobs", headers={"authorization": f"Bearer {made.stdout.strip()}"}
        )
        assert seen.status_code == 200
        listed = json.loads(typed(tmp_path, "token", "ls", "--url", url, "--json").stdout)
        assert [one["name"] for one in listed["tokens"]] == ["ci", "root"]
        gone = typed(tmp_path, "token", "revoke", listed["tokens"][0]["id"], "--url", url)
        assert gone.returncode == 0, gone.stderr
        assert served.end() == 0
