"""Where peers are installed: a virtual environment each, or one directory of npm packages."""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shutil import which

STAMP = "installed.json"
"""Written last, with what is installed: an interrupted install is started again."""


class InstallError(Exception):
    """A peer could not be installed; the message has the reason and what to do."""


@dataclass(frozen=True, kw_only=True)
class PythonEnvironment:
    """A virtual environment with packages in exactly these versions."""

    name: str
    packages: Mapping[str, str]

    def install(self, directory: Path) -> None:
        """Make the environment and fill it by the pip of the Python that runs the bench."""
        place = directory / self.name
        wanted = {"python": sys.version, **self.packages}
        if _is_installed(place, wanted):
            return
        pins = [f"{package}=={version}" for package, version in self.packages.items()]
        print_line(f"installing {' '.join(pins)}")
        make_environment(place, pins)
        _mark_installed(place, wanted)

    def argv(self, directory: Path, program: Path) -> list[str]:
        """Start the program by the environment's own Python."""
        return [str(_python_in(directory / self.name)), str(program)]


@dataclass(frozen=True, kw_only=True)
class NodeEnvironment:
    """One directory of npm packages in exactly these versions."""

    packages: Mapping[str, str]

    def install(self, directory: Path) -> None:
        """Let npm fill the directory; packages' install scripts do not run."""
        place = directory / "npm"
        if _is_installed(place, self.packages):
            return
        npm = which("npm")
        if npm is None or which("node") is None:
            raise InstallError(
                "npm or node is not on the PATH, and some peers are npm packages: install Node.js"
                " 18 or newer with npm (Debian: nodejs npm), or leave these peers out"
            )
        pins = [f"{package}@{version}" for package, version in self.packages.items()]
        print_line(f"installing {' '.join(pins)}")
        place.mkdir(parents=True, exist_ok=True)
        manifest = {"private": True, "dependencies": dict(self.packages)}
        (place / "package.json").write_text(json.dumps(manifest), "utf-8")
        _run(
            [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(place)],
            remedy="make sure that there is a network, or a mirror in npm's configuration; then run"
            " it again",
        )
        _mark_installed(place, self.packages)

    def argv(self, directory: Path, program: Path) -> list[str]:
        """Start the program by the machine's node, and pass it where the packages are."""
        return ["node", str(program), "--packages", str(directory / "npm")]


def make_environment(place: Path, wanted: Sequence[str], limits: Path | None = None) -> None:
    """Make a virtual environment and fill it by the pip of the Python that runs the bench.

    `limits` is a file of the versions that packages must have, should they be needed.
    """
    _run(
        [sys.executable, "-m", "venv", "--clear", "--without-pip", str(place)],
        remedy="install Python with its venv module (Debian: python3-venv)",
    )
    constraint = () if limits is None else ("--constraint", str(limits))
    _run(
        [
            *(sys.executable, "-m", "pip", "--python", str(_python_in(place))),
            *("install", "--quiet", "--disable-pip-version-check", *constraint, *wanted),
        ],
        remedy="make sure that `python -m pip` works and that there is a network, or a mirror"
        " in pip's configuration; then run it again",
    )


def _python_in(place: Path) -> Path:
    return place / "bin" / "python"


def _is_installed(place: Path, wanted: Mapping[str, str]) -> bool:
    stamp = place / STAMP
    return stamp.exists() and json.loads(stamp.read_text("utf-8")) == dict(wanted)


def _mark_installed(place: Path, wanted: Mapping[str, str]) -> None:
    (place / STAMP).write_text(json.dumps(dict(wanted)), "utf-8")


def print_line(line: str) -> None:
    """Tell what is being installed: it takes its time."""
    print(f"peers: {line}", file=sys.stderr, flush=True)


def _run(command: Sequence[str], *, remedy: str) -> None:
    """Run it to its end; the last lines of its output explain a failure."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        output = "\n".join(done.stdout.strip().splitlines()[-5:])
        raise InstallError(
            f"`{' '.join(command)}` failed (exit {done.returncode}): {remedy}.\n{output}"
        )
