"""What the commands of the demo run in: the best isolation of this machine, in a place of its own.

With Podman, the containers, their image and their storage are in a temporary directory, apart from
those of the machine. Nothing of it is left afterwards.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

from examples.demo.agents import PROFILES
from holdfast.ids import mint_request
from holdfast.maintenance.host_health import examine_runners
from holdfast.runners.container.box_cgroup import hierarchies
from holdfast.stores.findings import FindingSeverity
from holdfast.wiring import list_runner_checks

IMAGE = "localhost/holdfast-demo"
CALL_SECONDS = 60.0
PODMAN = ("podman", "--cgroup-manager", "cgroupfs", "--events-backend", "file")
TITLES = {
    "podman": "Podman: each command has a container, which outlives its worker",
    "sandbox": "bubblewrap: each command has a sandbox, which ends with its worker",
    "process": "plain processes, without isolation",
}


class Unusable(Exception):
    """Something that containers need is not there."""


class Boxes:
    """The runner that the machine has, and what its workers need to use it."""

    def __init__(self) -> None:
        """Use a directory that the users of boxes can pass, and no other user can list."""
        self.directory = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
        self.directory.chmod(0o711)
        self.runner = "process"
        self.troubles: list[str] = []
        """Why no better one is used."""
        self._host = f"demo-{mint_request()[:8]}"

    @property
    def survive(self) -> bool:
        """Whether a box outlives its worker."""
        return self.runner == "podman"

    @property
    def options(self) -> tuple[str, ...]:
        """The options of a worker that runs commands."""
        image = ("--command-image", IMAGE) if self.runner == "podman" else ()
        return ("--commands", self.runner, *image, "--host-name", self._host)

    async def choose(self) -> None:
        """Take the first runner that works here."""
        self._use_private_storage()
        for name, check in list_runner_checks().items():
            findings = await examine_runners({name: check})
            troubles = [one.text for one in findings if one.verdict is FindingSeverity.PROBLEM]
            if name == "podman" and not troubles:
                troubles = await asyncio.to_thread(self._import_image)
            if not troubles:
                self.runner = name
                return
            self.troubles += [f"{name}: {text}" for text in troubles]

    @property
    def environment(self) -> dict[str, str]:
        """Where the files of commands and Podman's own are."""
        return {
            "HOLDFAST_COMMAND_DIR": f"{self.directory / 'files'}",
            "HOLDFAST_CONFIG": f"{PROFILES}",
            "CONTAINERS_STORAGE_CONF": f"{self.directory / 'storage.conf'}",
            "CONTAINERS_CONF": f"{self.directory / 'containers.conf'}",
        }

    def _use_private_storage(self) -> None:
        (self.directory / "storage.conf").write_text(
            '[storage]\ndriver = "overlay"\n'
            f'graphroot = "{self.directory}/root"\nrunroot = "{self.directory}/run"\n'
        )
        engine = f'[engine]\ntmp_dir = "{self.directory}/tmp"\n'
        (self.directory / "containers.conf").write_text(engine)
        os.environ.update(self.environment)

    def _import_image(self) -> list[str]:
        """Make an image of busybox, without a registry; return what prevents it."""
        tree = self.directory / "tree"
        try:
            busybox = shutil.which("busybox")
            if busybox is None:
                raise Unusable("there is no image, and no busybox to make one of")
            for name in ("bin", "tmp", "work", "artifacts", "proc", "dev", "sys", "run"):
                (tree / name).mkdir(parents=True)
            shutil.copy(busybox, tree / "bin" / "busybox")
            _call("chroot", str(tree), "/bin/busybox", "--install", "-s", "/bin")
            packed = _call("tar", "-C", str(tree), "-c", ".")
            _call(*PODMAN, "import", "--quiet", "-", IMAGE, given=packed)
        except (OSError, Unusable) as error:
            return [str(error)]
        return []

    def remove(self) -> None:
        """Leave nothing behind, however the demo ended."""
        if (self.directory / "root").exists():
            with suppress(OSError, Unusable):
                _call(*PODMAN, "rm", "--all", "--force", "--time", "0")
        for mount in reversed(_mounts_below(self.directory)):
            subprocess.run(["umount", "--lazy", mount], check=False)
        for hierarchy in hierarchies():
            for group in (hierarchy / "holdfast").glob(f"*.{self._host}"):
                with suppress(OSError):
                    group.rmdir()
        shutil.rmtree(self.directory, ignore_errors=True)


def _call(*words: str, given: bytes | None = None) -> bytes:
    done = subprocess.run(
        words, input=given, capture_output=True, check=False, timeout=CALL_SECONDS
    )
    if done.returncode:
        raise Unusable(f"{words[0]}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def _mounts_below(directory: Path) -> list[str]:
    with suppress(OSError):
        places = (line.split(" ")[1] for line in Path("/proc/self/mounts").read_text().splitlines())
        return [place for place in places if place.startswith(f"{directory}/")]
    return []
