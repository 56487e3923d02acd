"""What Holdfast is shipped with names commands and settings that exist, and fits together."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from configparser import ConfigParser
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import typer.main
import yaml
from typer.testing import CliRunner

from holdfast.cli.main import app
from tests.docs.pages import ROOT
from tools import lock

UNITS = sorted((ROOT / "deploy/systemd").glob("*.service"))
GRACE_SECONDS = 30 + 20
"""How long a worker may take to end: its grace, and what comes after it."""


def settings() -> set[str]:
    """List all settings."""
    done = CliRunner().invoke(app, ["config", "--json"])
    return set(json.loads(done.stdout)["settings"])


def check_command(words: list[str], environment: dict[str, str]) -> None:
    """Check that a command would be accepted as it is written."""
    names = {name.removeprefix("HOLDFAST_").lower() for name in environment}
    assert names - {"config"} <= settings()
    given = {name: value for name, value in environment.items() if name != "HOLDFAST_CONFIG"}
    commands: Any = typer.main.get_group(app).commands
    assert words[0] in commands, words
    if words[0] in ("up", "serve", "worker", "reconcile"):
        done = CliRunner().invoke(app, ["config", "--json", *words], env=given)
        assert done.exit_code == 0, done.output
        assert "(invalid)" not in done.stdout


@pytest.fixture
def compose() -> Any:
    """The compose file, its variables filled in."""
    text = (ROOT / "compose.yaml").read_text()
    filled = re.sub(r"\$\{(\w+):\?[^}]*\}", "secret", text)
    return yaml.safe_load(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", filled))


def test_the_compose_file_runs_each_role_on_its_database(compose: Any) -> None:
    services = compose["services"]
    assert set(services) == {"postgres", "migrate", "serve", "reconcile", "worker"}
    database = services["postgres"]["environment"]
    for name, service in services.items():
        assert set(service.get("depends_on", {})) <= set(services)
        if name == "postgres":
            continue
        environment = dict(service["environment"])
        if name == "worker":
            assert environment["HOLDFAST_APP"]
        check_command(service["command"], environment)
        url = urlsplit(environment["HOLDFAST_URL"])
        assert (url.username, url.password) == (
            database["POSTGRES_USER"],
            database["POSTGRES_PASSWORD"],
        )
        assert (url.hostname, url.path) == ("postgres", f"/{database['POSTGRES_DB']}")
        assert service["init"] is True
        assert int(service["stop_grace_period"].removesuffix("s")) >= GRACE_SECONDS


def test_nothing_of_the_compose_file_can_be_reached_from_elsewhere(compose: Any) -> None:
    ports = [port for one in compose["services"].values() for port in one.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def dockerfile() -> list[tuple[str, str]]:
    """Read the Dockerfile's instructions."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    lines = (line.strip() for line in text.splitlines())
    parted = [line.partition(" ") for line in lines if line and not line.startswith("#")]
    return [(word, rest.strip()) for word, _, rest in parted]


def test_the_image_is_built_from_what_there_is_and_runs_a_command_that_there_is() -> None:
    instructions = dockerfile()
    kept = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    for word, rest in instructions:
        if word == "COPY" and "--from" not in rest:
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists()
                assert source in kept, f"{source} is ignored"
    given = dict(instructions)
    assert json.loads(given["ENTRYPOINT"]) == ["holdfast"]
    environment = dict(pair.split("=", 1) for pair in shlex.split(given["ENV"]))
    ours = {name: value for name, value in environment.items() if name.startswith("HOLDFAST_")}
    check_command(json.loads(given["CMD"]), ours)
    assert given["USER"] == "holdfast"


def test_the_image_and_ci_install_nothing_without_its_hash() -> None:
    installs = re.findall(r"pip install .*", (ROOT / "Dockerfile").read_text())
    assert len(installs) == 3
    for line in installs:
        assert "--require-hashes" in line or "--no-deps" in line
    assert "pip wheel --no-cache-dir --no-deps --no-build-isolation" in "\n".join(
        rest for _, rest in dockerfile()
    )
    assert "LOCKED=1" in (ROOT / ".ci/run").read_text()


def test_the_lock_files_are_in_step_with_the_project() -> None:
    for name in ("build", *lock.LOCKS):
        assert lock.faults(name) == []


def test_a_lock_file_that_is_out_of_step_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "requirements").mkdir()
    text = lock.lock("image").read_text()
    project = (ROOT / "pyproject.toml").read_text()
    monkeypatch.setattr(lock, "ROOT", tmp_path)

    def found(project: str, locked: str) -> str:
        (tmp_path / "pyproject.toml").write_text(project)
        (tmp_path / "requirements/image.txt").write_text(locked)
        return "\n".join(lock.faults("image"))

    assert found(project, text) == ""
    assert "other dependencies" in found(project.replace("msgspec>=", "msgspec>=0.2,>="), text)
    assert "is pinned" in found(project.replace("msgspec>=0.21", "msgspec>=99"), text)
    assert "has no hash" in found(project, text + "stray==1.0\n")
    assert "names a place" in found(project, "--index-url https://a.example/simple\n" + text)


def unit(path: Path) -> tuple[dict[str, str], dict[str, str]]:
    """Read a unit's service: its settings, and what it puts into the environment."""
    parser = ConfigParser(strict=False, interpolation=None, delimiters="=")
    parser.optionxform = str  # type: ignore[method-assign, assignment]
    parser.read_string(path.read_text())
    found = re.findall(r"^Environment=(\w+)=(.*)$", path.read_text(), re.MULTILINE)
    return dict(parser["Service"]), dict(found)


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_runs_a_command_that_there_is_and_leaves_it_time_to_end(path: Path) -> None:
    service, environment = unit(path)
    program, *words = shlex.split(service["ExecStart"].replace("%i", "mail"))
    assert Path(program).name == "holdfast"
    named = {"HOLDFAST_APP": "a:b"} if words[0] == "worker" else {}
    check_command(words, {**environment, **named})
    # Containers outlive their worker, and a podman that starts one must not be killed with it.
    assert service["KillMode"] == ("process" if "--commands" in words else "mixed")
    assert int(service["TimeoutStopSec"]) >= GRACE_SECONDS
    assert service["Restart"] == "always"
    assert service["UMask"] == "0077", "what it writes is for its user alone"


def test_there_is_a_unit_for_each_role() -> None:
    roles = {path.stem.removeprefix("holdfast-").removesuffix("@") for path in UNITS}
    assert roles == {"up", "serve", "worker", "reconcile", "commands"}


def test_the_settings_file_that_is_shipped_is_taken() -> None:
    file = ROOT / "deploy/holdfast.toml"
    done = CliRunner().invoke(app, ["--config", str(file), "config", "--json"])
    assert done.exit_code == 0, done.output
    # Also what it has only as examples.
    examples = re.sub(r"^# (\w+ = )", r"\1", file.read_text(), flags=re.MULTILINE)
    assert set(tomllib.loads(examples)) <= settings()


def test_every_setting_is_on_the_page() -> None:
    page = (ROOT / "docs/operate.md").read_text()
    assert [name for name in sorted(settings()) if f"`{name}`" not in page] == []
