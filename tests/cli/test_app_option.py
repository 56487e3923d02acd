"""`--app`: commands on the store of an app, and how an app that cannot be imported is reported."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from holdfast.cli.main import app
from holdfast.cli.runtime import BAD_INPUT

APP = """
from holdfast import Holdfast

app = Holdfast("shop.db")

@app.task
def greet(name: str) -> str:
    return name
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with an app in it, where commands are typed."""
    (tmp_path / "option_shop.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "option_shop", raising=False)
    return tmp_path


def call(*words: str, **variables: str) -> Result:
    return CliRunner().invoke(app, words, env={"COLUMNS": "200", **variables})


def ids(outcome: Result) -> list[str]:
    assert outcome.exit_code == 0, outcome.output
    return [job["id"] for job in json.loads(outcome.stdout)["jobs"]]


def test_the_apps_own_address_is_used_wherever_the_app_is_named(here: Path) -> None:
    assert call("migrate", "--app", "option_shop:app").exit_code == 0
    assert (here / "shop.db").exists()
    submitted = call("submit", "greet", "name=Ada", "--job-id", "a", "--app", "option_shop:app")
    assert submitted.exit_code == 0
    assert ids(call("ls", "--json", "--app", "option_shop")) == ["a"]
    assert ids(call("ls", "--json", HOLDFAST_APP="option_shop:app")) == ["a"]
    (here / "holdfast.toml").write_text('app = "option_shop:app"\n')
    assert ids(call("ls", "--json")) == ["a"]


def test_an_address_that_is_given_wins_over_the_apps(here: Path) -> None:
    call("migrate", "--url", "other.db")
    call("migrate", "--app", "option_shop:app")
    call("submit", "greet", "--job-id", "a", "--app", "option_shop:app")
    assert ids(call("ls", "--json", "--app", "option_shop:app", "--url", "other.db")) == []
    assert ids(call("ls", "--json", "--app", "missing:app", HOLDFAST_URL="other.db")) == []


@pytest.mark.parametrize(
    ("code", "place"),
    [
        ("import holdfast\nimport nosuchmodule\n", "option_broken.py:2: ModuleNotFoundError"),
        ("x = 1\ny = (\n", "option_broken.py:2: SyntaxError"),
        ("def f():\n    return 1 / 0\n\nf()\n", "option_broken.py:2: ZeroDivisionError"),
    ],
)
def test_an_app_that_cannot_be_imported_is_refused_with_file_and_line(
    here: Path, code: str, place: str
) -> None:
    (here / "option_broken.py").write_text(code)
    for words in (["worker", "option_broken:app"], ["ls", "--app", "option_broken:app"]):
        refused = call(*words)
        assert refused.exit_code == BAD_INPUT
        assert place in refused.stderr.replace("\n", "")
        assert "Traceback" not in refused.stderr


def test_a_worker_without_a_queue_is_refused() -> None:
    refused = call("worker", "option_shop:app", "--queues", "")
    assert refused.exit_code == BAD_INPUT
    assert "at least one queue" in refused.stderr
