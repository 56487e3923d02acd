"""Settings: a flag wins over the environment, that over holdfast.toml, that over the default."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner, Result

from holdfast.cli.main import COMPLETION_VARIABLE, NAME, app
from holdfast.config import mask_secrets, variable
from tests.cli.commands import HOSTILE, assert_harmless

RUNNING = ("up", "serve", "worker", "reconcile")
"""The commands that keep running, whose every option is a setting."""
OF_ONE_CALL = {"as_json", "once", "fix_times", "help"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory where commands are typed."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*arguments: str, **environment: str) -> Result:
    """Type a command."""
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "200", **environment})


def settings(*arguments: str, **environment: str) -> dict[str, Any]:
    """Ask which settings are in force."""
    done = call("config", "--json", *arguments, **environment)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)["settings"]
    return {name: (one["value"], one["from"]) for name, one in found.items()}


def test_each_place_wins_over_the_one_below_it(here: Path) -> None:
    assert settings()["port"] == ("8080", "default")
    (here / "holdfast.toml").write_text("port = 1001\nhost = '::1'")
    assert settings()["port"] == ("1001", "holdfast.toml")
    assert settings(HOLDFAST_PORT="1002")["port"] == ("1002", "HOLDFAST_PORT")
    flagged = settings("serve", "--port", "1003", HOLDFAST_PORT="1002")
    assert flagged["port"] == ("1003", "--port")
    assert flagged["host"] == ("::1", "holdfast.toml")


def test_a_file_elsewhere_is_named_by_flag_or_environment(here: Path) -> None:
    (here / "holdfast.toml").write_text("port = 1001")
    other = here / "other.toml"
    other.write_text("port = 1002")
    assert settings(HOLDFAST_CONFIG=str(other))["port"] == ("1002", str(other))
    done = call("--config", str(other), "config")
    assert "1002" in done.stdout


def test_a_file_of_a_hostile_name_does_not_reach_the_terminal(here: Path) -> None:
    (here / HOSTILE).write_text("port = 1002")
    done = call("--config", HOSTILE, "config")
    assert done.exit_code == 0, done.output
    assert_harmless(done.stdout)


def test_what_the_file_sets_reaches_the_commands(here: Path) -> None:
    """Also those below a group, and arguments."""
    (here / "holdfast.toml").write_text("url = 'mine.db'\napp = 'nowhere:app'\n")
    assert call("migrate").exit_code == 0
    assert (here / "mine.db").exists()
    assert call("epoch", "show").stdout == "epoch 1\n"
    assert call("dlq", "list").exit_code == 0
    assert "nowhere" in call("worker").stderr


def test_lists_and_truth_are_written_as_in_toml(here: Path) -> None:
    (here / "holdfast.toml").write_text("queues = ['a', 'b']\nreconcile = false\ngrace = 1.5\n")
    found = settings()
    assert found["queues"] == ("a,b", "holdfast.toml")
    assert found["reconcile"] == ("false", "holdfast.toml")
    assert found["grace"] == ("1.5", "holdfast.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 1", "no setting 'prot'; did you mean 'port'?"),
        ("port = 'x'", "port:"),
        ("port = true", "port:"),
        ("port = 8080.5", "port:"),
        ("port = 70000", "port:"),
        ("log_format = 'xml'", "log_format:"),
        ("log_level = 'loud'", "log_level:"),
        ("queues = [1]", "queues must be"),
        ("[serve]\nport = 1", "serve must be"),
        ("port = ", "is not TOML"),
        ("config = 'x'", "no setting 'config'"),
        ("url = '\x00'", "is not TOML"),
    ],
)
def test_a_file_that_does_not_fit_is_refused_by_every_command(
    here: Path, text: str, message: str
) -> None:
    (here / "holdfast.toml").write_text(text)
    done = call("migrate")
    assert done.exit_code == 2
    assert done.stderr.startswith("error bad_config: holdfast.toml")
    assert message in done.stderr
    assert not (here / "holdfast.db").exists()


def test_a_file_that_is_named_and_not_there_is_refused(here: Path) -> None:
    done = call("--config", "nix.toml", "config")
    assert (done.exit_code, "nix.toml" in done.stderr) == (2, True)


def test_a_variable_that_does_not_fit_is_shown_as_such(here: Path) -> None:
    assert settings(HOLDFAST_PORT="x")["port"] == ("(invalid)", "HOLDFAST_PORT")
    assert call("serve", HOLDFAST_PORT="x").exit_code == 2


@pytest.mark.parametrize("command", ["up", "serve", "reconcile", "worker x:y"])
def test_an_unknown_level_is_refused_before_anything_starts(here: Path, command: str) -> None:
    done = call(*command.split(), "--log-level", "loud")
    assert done.exit_code == 2
    assert "'loud' is not one of" in done.stderr
    assert not (here / "holdfast.db").exists()


def test_a_level_may_be_written_small(here: Path) -> None:
    (here / "holdfast.toml").write_text("log_level = 'warning'\n")
    assert settings()["log_level"] == ("WARNING", "holdfast.toml")


def test_passwords_are_not_shown(here: Path) -> None:
    url = "postgresql://me:pa55@db:5432/x?pooled=true&listen_url=postgresql://me:pa55@db/x"
    answer = settings(HOLDFAST_URL=url)["url"][0]
    assert "pa55" not in answer
    assert answer.startswith("postgresql://me:***@db:5432/x?pooled=true&")
    assert mask_secrets("token", "hf_1_2") == "***"
    assert mask_secrets("url", "postgresql://h/x?password=pa55") == "postgresql://h/x?password=***"
    assert mask_secrets("url", "postgresql://[::1/x") == "postgresql://[::1/x"
    assert mask_secrets("url", "jobs.db") == "jobs.db"


@pytest.mark.parametrize(
    "rest", ["h:port/jobs", "h/jobs?target_session_attrs=standby&password=hunter2"]
)
def test_a_bad_address_is_refused_without_its_password(here: Path, rest: str) -> None:
    result = CliRunner().invoke(app, ["ls", "--url", f"postgresql://me:hunter2@{rest}"])
    assert result.exit_code == 2
    assert "hunter2" not in result.output


@pytest.mark.parametrize("name", RUNNING)
def test_every_option_of_what_keeps_running_is_a_setting_by_its_own_name(name: str) -> None:
    group: Any = typer.main.get_command(app)
    options = [one for one in group.commands[name].params if one.name not in OF_ONE_CALL]
    assert options
    for option in options:
        assert option.envvar == variable(option.name)


def test_completion_is_printed_for_each_shell() -> None:
    for shell in ("bash", "zsh", "fish"):
        done = call("completion", shell)
        assert done.exit_code == 0
        assert "_HOLDFAST_COMPLETE" in done.stdout
    assert call("completion", "tcsh").exit_code == 2


def test_a_shell_that_asks_gets_the_commands() -> None:
    """By the installed command, as the printed script asks it."""
    asked = {"COMP_WORDS": "holdfast ser", "COMP_CWORD": "1", COMPLETION_VARIABLE: "complete_bash"}
    answer = subprocess.run(
        [Path(sys.executable).parent / NAME],
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert answer.stdout.split() == ["serve"], answer.stderr


AGENTS = """
[agents.coder]
argv = ["/bin/agent", "--task", "{task_file}"]
env = {MODE = "fast"}
secrets = ["KEY"]
network = "host"
cpus = 2
[secrets]
KEY = {file = "/etc/holdfast/key"}
"""


def test_agents_and_the_places_of_secrets_are_shown(here: Path) -> None:
    (here / "holdfast.toml").write_text(AGENTS)
    shown = call("config")
    assert "/bin/agent --task '{task_file}'" in shown.stdout
    assert "file /etc/holdfast/key" in shown.stdout
    answer = json.loads(call("config", "--json").stdout)
    assert answer["agents"]["coder"]["network"] == "host"
    assert answer["secrets"] == {"KEY": {"file": "/etc/holdfast/key", "env": None}}


def test_what_is_given_in_the_place_of_a_secret_is_not_shown(here: Path) -> None:
    text = AGENTS.replace('file = "/etc/holdfast/key"', 'env = "sk-canary"')
    (here / "holdfast.toml").write_text(text)
    shown = call("config")
    assert "[secrets.KEY] env must be the name of a variable" in shown.output
    assert "canary" not in shown.output


@pytest.mark.parametrize(
    ("line", "replaced", "words"),
    [
        ("cpus = 2", 'env_allowed = ["A-B"]', "[agents.coder] env_allowed has 'A-B'"),
        ("cpus = 2", 'tenants = "ours"', "[agents.coder] tenants"),
        ('network = "host"', 'network = "all"', "[agents.coder] network"),
        ("cpus = 2", 'cpus = "2"', "[agents.coder] cpus"),
        ("cpus = 2", "cpus = 0", "[agents.coder] cpus must be a whole number from 1"),
        ("cpus = 2", "cpu = 2", "[agents.coder] has no field 'cpu'"),
        ("{task_file}", "{task}", "[agents.coder] argv has '{task}'; the placeholders are"),
        ("{task_file}", "{task_file!r}", "[agents.coder] argv has"),
        ("{task_file}", "{0}", "[agents.coder] argv has"),
        ("{task_file}", "{", "[agents.coder] argv has"),
        ('["/bin/agent", "--task", "{task_file}"]', "[]", "[agents.coder] argv"),
        ('["/bin/agent", "--task", "{task_file}"]', '"agent"', "[agents.coder] argv"),
        ("MODE", "HOLDFAST_MODE", "[agents.coder] env has 'HOLDFAST_MODE'"),
        ('["KEY"]', '["OTHER"]', "[agents.coder] secrets names the secret 'OTHER'"),
        ('{file = "/etc/holdfast/key"}', '"sk-1"', "[secrets.KEY] must be a table"),
        ('{file = "/etc/holdfast/key"}', "{}", "[secrets.KEY] file or `env`"),
        ('{file = "/etc/holdfast/key"}', '{env = "A-B"}', "[secrets.KEY] env must be"),
        ("[agents.coder]", '[agents."a/b"]', "[agents.a/b]"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_by_its_name_and_field(
    here: Path, line: str, replaced: str, words: str
) -> None:
    assert line in AGENTS
    (here / "holdfast.toml").write_text(AGENTS.replace(line, replaced))
    refused = call("config")
    assert refused.exit_code == 2
    assert f"holdfast.toml: {words}" in refused.output
    assert "sk-1" not in refused.output
