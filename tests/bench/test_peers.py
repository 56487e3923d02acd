"""The peers that Holdfast is measured against: their registry, and how they are installed."""

from __future__ import annotations

import json
import py_compile
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from shutil import which

import pytest

from bench.peers import PEERS, PROGRAMS, Peer
from bench.peers.environments import InstallError, NodeEnvironment, PythonEnvironment
from bench.programs.replies import noise

NPM = NodeEnvironment(packages={"some-peer": "1.2.3"})
PYTHON = PythonEnvironment(name="some-peer", packages={"some-peer": "1.2.3", "driver": "4.5"})


def every_peer() -> pytest.MarkDecorator:
    return pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)


def test_names_and_programs_are_unique() -> None:
    for values in ([peer.name for peer in PEERS], [peer.program for peer in PEERS]):
        assert len(set(values)) == len(values)


def test_python_peers_do_not_share_an_environment() -> None:
    names = [
        peer.environment.name for peer in PEERS if isinstance(peer.environment, PythonEnvironment)
    ]
    assert len(set(names)) == len(names)


@every_peer()
def test_versions_are_exact(peer: Peer) -> None:
    environment = peer.environment
    assert isinstance(environment, PythonEnvironment | NodeEnvironment)
    for package, version in environment.packages.items():
        assert re.fullmatch(r"\d+(\.\d+)+", version), f"{package} {version}"


@every_peer()
def test_modes_have_names_and_settings(peer: Peer) -> None:
    names = [name for name, _ in peer.modes]
    assert names
    assert len(set(names)) == len(names)
    assert all(name and settings for name, settings in peer.modes)


@every_peer()
def test_a_program_can_be_read_by_its_interpreter(peer: Peer, tmp_path: Path) -> None:
    _read_by_its_interpreter(PROGRAMS / peer.program, tmp_path)


def test_what_programs_share_can_be_read_too(tmp_path: Path) -> None:
    for shared in PROGRAMS.glob("protocol.*"):
        _read_by_its_interpreter(shared, tmp_path)


@pytest.mark.parametrize("size", [1, 42, 43, 1024])
def test_everybody_carries_the_same_payload(size: int) -> None:
    ours = noise(size)
    assert len(ours) == size
    code = f"import protocol; print(protocol.payload({size})['data'])"
    assert _said(sys.executable, "-c", code) == ours
    if (node := which("node")) is not None:
        code = 'import("./protocol.mjs").then((all) => console.log(all.payload().data))'
        assert _said(node, "-e", code, "--", "--bytes", str(size)) == ours


def _said(*command: str) -> str:
    return subprocess.run(
        command, cwd=PROGRAMS, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_no_program_is_left_without_a_peer() -> None:
    programs = {file.name for file in PROGRAMS.iterdir() if "_peer" in file.name}
    assert programs == {peer.program for peer in PEERS}


@every_peer()
def test_a_peer_is_started_from_where_it_was_installed(peer: Peer, tmp_path: Path) -> None:
    argv = peer.argv(tmp_path)
    assert str(PROGRAMS / peer.program) in argv
    assert any(part.startswith(str(tmp_path)) for part in argv)


def test_python_packages_are_installed_once(
    tmp_path: Path, fake: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = fake("python", "exit 0")
    monkeypatch.setattr(sys, "executable", str(calls.parent / "python"))
    for _ in range(2):
        PYTHON.install(_made(tmp_path / "peers" / PYTHON.name).parent)
    venv, pip = calls.read_text("utf-8").splitlines()
    assert "-m venv" in venv
    assert pip.endswith("some-peer==1.2.3 driver==4.5")


def test_another_version_is_installed_anew(tmp_path: Path, fake: Callable[..., Path]) -> None:
    calls = fake("npm", "exit 0")
    NPM.install(tmp_path)
    NodeEnvironment(packages={"some-peer": "1.2.4"}).install(tmp_path)
    assert len(calls.read_text("utf-8").splitlines()) == 2
    manifest = json.loads((tmp_path / "npm" / "package.json").read_text("utf-8"))
    assert manifest["dependencies"] == {"some-peer": "1.2.4"}


def test_a_failing_pip_says_why_and_what_to_do(
    tmp_path: Path, fake: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = fake("python", 'case "$*" in *"-m pip"*) echo "no route to host" >&2; exit 1;; esac')
    monkeypatch.setattr(sys, "executable", str(calls.parent / "python"))
    _made(tmp_path / PYTHON.name)
    # The second time too: a failed install is not taken for a finished one.
    for _ in range(2):
        with pytest.raises(InstallError, match=r"(?s)there is a network.*no route to host"):
            PYTHON.install(tmp_path)


def test_a_python_without_venv_says_what_to_install(
    tmp_path: Path, fake: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = fake("python", "echo No module named venv >&2; exit 1")
    monkeypatch.setattr(sys, "executable", str(calls.parent / "python"))
    with pytest.raises(InstallError, match=r"(?s)python3-venv.*No module named venv"):
        PYTHON.install(tmp_path)


def test_a_failing_npm_says_why_and_what_to_do(tmp_path: Path, fake: Callable[..., Path]) -> None:
    fake("npm", "echo getaddrinfo ENOTFOUND >&2; exit 1")
    for _ in range(2):
        with pytest.raises(InstallError, match=r"(?s)there is a network.*ENOTFOUND"):
            NPM.install(tmp_path)


def test_a_missing_npm_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InstallError, match=r"install Node\.js 18 or newer"):
        NPM.install(tmp_path)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Put a program of that name first on the PATH; it notes its calls in the file handed back."""
    programs = tmp_path / "programs"
    programs.mkdir()
    calls = programs / "calls"

    def make(name: str, body: str) -> Path:
        for each in (name, "node"):
            script = programs / each
            script.write_text(f'#!/bin/sh\necho "$*" >>"{calls}"\n{body}\n', "utf-8")
            script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
        return calls

    return make


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def _read_by_its_interpreter(program: Path, scratch: Path) -> None:
    if program.suffix == ".py":
        py_compile.compile(str(program), str(scratch / "compiled.pyc"), doraise=True)
    elif (node := which("node")) is not None:
        subprocess.run([node, "--check", str(program)], check=True)
    assert program.stat().st_size > 0
