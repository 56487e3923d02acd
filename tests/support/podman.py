"""A private Podman: its storage, an image of busybox, and the proof that nothing of it is left."""

import io
import os
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.ids import mint_id
from holdfast.ports.box import Box
from holdfast.runners.container.box_cgroup import hierarchies
from holdfast.runners.container.settings import CallLimits, PodmanSettings
from tests.support.lifeline import Lifeline
from tests.support.unavailable import Unavailable
from tests.support.waiting import wait_until

IMAGE = "localhost/holdfast-busybox:test"
_PROGRAMS = ("podman", "runc", "conmon", "tini-static", "busybox")
_numbers = count(1)
LIMITS = CallLimits(kill=30.0)


class PrivatePodman:
    """A storage of its own with an image in it; use it as a context manager.

    Its containers have control groups of their own, by which everything of them is found.
    """

    def __init__(self) -> None:
        for program in _PROGRAMS:
            if shutil.which(program) is None:
                raise Unavailable(f"{program} is not installed: run tools/system_packages")
        if os.geteuid() != 0:
            raise Unavailable("containers with limits need root")
        # Podman mounts this part of its storage on itself.
        self._lifeline = Lifeline(mounted="root/overlay")
        self.directory = self._lifeline.directory
        self.cgroup = f"/{self.directory.name}"
        self.store = self.directory.name
        self.settings = PodmanSettings(
            directory=self.directory / "state",
            host="test-host",
            store=self.store,
            image=IMAGE,
            cgroup_parent=self.cgroup,
            storage=(
                *("--root", f"{self.directory / 'root'}"),
                *("--runroot", f"{self.run_root}"),
                *("--tmpdir", f"{self.temporary}"),
            ),
            limits=LIMITS,
        )

    @property
    def run_root(self) -> Path:
        return self.directory / "run"

    @property
    def temporary(self) -> Path:
        return self.directory / "tmp"

    def __enter__(self) -> "PrivatePodman":
        self.build_image(IMAGE)
        return self

    def __exit__(self, *error: object) -> None:
        self.call("rm", "--all", "--force", "--time", "0", check=False)
        self.call("rmi", "--all", "--force", check=False)
        self.end_processes()
        self.forget_in_runtime()
        remove_groups(self.cgroup)
        for mount in reversed(self.mounts()):
            subprocess.run(["umount", "-l", mount], check=False)
        self._lifeline.close()

    def call(self, *arguments: str, check: bool = True, given: bytes | None = None) -> str:
        """Call Podman by itself, as an operator would."""
        done = subprocess.run(
            ["podman", *self.settings.global_options, *arguments],
            input=given,
            cwd=self.directory,
            capture_output=True,
            check=False,
            timeout=60,
        )
        if check and done.returncode != 0:
            raise RuntimeError(f"podman {arguments[0]}: {done.stderr.decode()}")
        return done.stdout.decode()

    def build_image(self, name: str, *changes: str, files: Iterable[Path] = ()) -> None:
        """Import busybox as an image, with files of the host at the same paths."""
        options = [f"--change={change}" for change in changes]
        self.call("import", "--quiet", *options, "-", name, given=_busybox_tree(files))

    def box(self, *argv: str, **more: object) -> Box:
        """Return a new box, with a directory of its own."""
        directory = self.directory / "boxes" / f"{next(_numbers)}"
        directory.mkdir(parents=True)
        box = Box(
            job=mint_id(),
            attempt=1,
            epoch=3,
            host=self.settings.host,
            store=self.store,
            type="worker",
            argv=argv,
            image=None,
            cpus=1,
            memory_mb=64,
            pids=64,
            env={},
            work=directory / "work",
            work_writable=False,
            artifacts=directory / "artifacts",
            directory=directory / "own",
        )
        return replace(box, **more)

    def shell(self, script: str, **more: object) -> Box:
        """Return a new box that runs a script."""
        return self.box("/bin/sh", "-c", script, **more)

    def processes(self) -> set[int]:
        """Return the processes of all boxes and monitors, dead or alive of a container's number."""
        return {
            int(pid)
            for mount in hierarchies()
            for file in (mount / self.cgroup.lstrip("/")).rglob("cgroup.procs")
            for pid in _read(file).split()
        } | self.monitors()

    def monitors(self) -> set[int]:
        """Return the monitors and other processes that were started for this storage."""
        mark = f"{self.directory / 'root'}\0".encode()
        return {
            int(entry.parts[2])
            for entry in Path("/proc").glob("[0-9]*/cmdline")
            if mark in _read_bytes(entry) and int(entry.parts[2]) != os.getpid()
        }

    def mounts(self) -> list[str]:
        """Return what is mounted in the storage, apart from the storage itself."""
        lines = Path("/proc/self/mounts").read_text().splitlines()
        places = (line.split(" ")[1] for line in lines)
        own = str(self.directory / "root" / "overlay")
        return [each for each in places if each.startswith(f"{self.directory}/") and each != own]

    def _list_names(self) -> list[str]:
        """Return the names of all containers; Podman cannot list one that is just being removed."""
        try:
            return self.call("ps", "--all", "--external", "--format", "{{.Names}}").split()
        except RuntimeError as error:
            if "container not known" not in str(error):
                raise
            return ["one that is being removed"]

    def left(self) -> dict[str, object]:
        """Return what there is of containers: nothing, once all were removed."""
        names = self._list_names()
        groups = [
            f"{group}"
            for mount in hierarchies()
            for group in (mount / self.cgroup.lstrip("/")).rglob("hf-*")
        ]
        traces = list((self.settings.directory / "traces").glob("*"))
        stored = [
            each.name for each in (self.directory / "root" / "overlay-containers").glob("[0-9a-f]*")
        ]
        found = {
            "containers": names,
            "processes": self.processes(),
            "control groups": groups,
            "mounts": self.mounts(),
            "traces": traces,
            "storage": [name for name in stored if len(name) == 64],
            "runtime states": self.runtime_states(),
        }
        return {what: each for what, each in found.items() if each}

    def end_processes(self) -> None:
        """Kill what a failed test has left."""
        limit = time.monotonic() + 10
        while (left := self.processes()) and time.monotonic() < limit:
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)

    def reboot(self) -> None:
        """Do what a reboot does: no process is left, and nothing of the volatile directories."""
        self.end_processes()
        for mount in reversed(self.mounts()):
            subprocess.run(["umount", "-l", mount], check=False)
        for directory in (self.run_root, self.temporary):
            shutil.rmtree(directory)
            directory.mkdir()
        self.forget_in_runtime()
        remove_groups(self.cgroup)

    def runtime_states(self) -> list[Path]:
        """Return what the runtime remembers of containers of this storage."""
        mark = str(self.directory).encode()
        return [
            each for each in Path("/run/runc").glob("*/state.json") if mark in _read_bytes(each)
        ]

    def forget_in_runtime(self) -> None:
        """Remove it, as a reboot does."""
        for state in self.runtime_states():
            shutil.rmtree(state.parent)


@pytest.fixture(scope="session")
def private_podman() -> Iterator[PrivatePodman]:
    """One storage per test process. Import it in the conftest of the tests that need it."""
    try:
        made = PrivatePodman()
    except Unavailable as reason:
        pytest.skip(str(reason))
    with made as podman:
        yield podman


@contextmanager
def nothing_left(podman: PrivatePodman) -> Iterator[None]:
    """Check afterwards that the host is as it was: no container, process, group, mount, file."""
    yield
    try:
        wait_until(lambda: not podman.left(), "the host to be as before", limit_seconds=10)
    except TimeoutError:
        left = podman.left()
        podman.call("rm", "--all", "--force", "--time", "0", check=False)
        podman.end_processes()
        podman.forget_in_runtime()
        remove_groups(podman.cgroup)
        shutil.rmtree(podman.settings.directory / "traces", ignore_errors=True)
        raise AssertionError(f"left on the host: {left}") from None


def remove_groups(path: str) -> None:
    """Remove empty control groups, the inner ones first."""
    for mount in hierarchies():
        for directory, _, _ in os.walk(mount / path.lstrip("/"), topdown=False):
            with suppress(OSError):
                os.rmdir(directory)


def _read(file: Path) -> str:
    return _read_bytes(file).decode(errors="replace")


def _read_bytes(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


def _busybox_tree(files: Iterable[Path]) -> bytes:
    """Return a root directory with busybox and its names, and other files, as a tar file."""
    busybox = shutil.which("busybox")
    assert busybox is not None
    listed = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout
    tree = io.BytesIO()
    with tarfile.open(fileobj=tree, mode="w") as tar:
        for name in ("bin", "tmp", "work", "artifacts", "proc", "dev", "sys", "etc", "run"):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            tar.addfile(entry)
        tar.add(busybox, "bin/busybox")
        for name in listed.split():
            if name != "busybox":
                entry = tarfile.TarInfo(f"bin/{name}")
                entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
                tar.addfile(entry)
        for file in files:
            tar.add(file.resolve(), str(file).lstrip("/"))
    return tree.getvalue()
