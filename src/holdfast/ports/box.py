"""The port of boxes: where commands run apart from their host, and what is observed of them.

A box is one attempt of one command: its processes, its limits, its directories. What runs it (a
container runtime, a sandbox, a plain process) implements `Boxes`; `holdfast.testing.BoxContract`
checks what is promised here. The rule behind all of it: no success without an exit code that was
observed, and no end on record while anything of a box may still run.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from holdfast.errors import ArtifactsTooLarge, ErrorReport, HoldfastError
from holdfast.lifecycle.record import JobId

LOG_BYTES = 50 * 1024 * 1024
"""How much of a command's output is kept: the first bytes; the command never notices."""
NO_NETWORK, HOST_NETWORK = "none", "host"
PLACE_PREFIX = "HOLDFAST_"
"""The prefix of variables that name the directories of a command."""
LOG_FILE = "log"
"""The output of a box, in its directory: lines of `RFC3339-time stdout|stderr F|P text`, where P
is a piece of a line that continues. The format of Kubernetes, which container runtimes write."""
TRUNCATED_FILE = "log.truncated"
"""Exists in a box's directory once output was dropped beyond its limit."""


class Box(Struct, frozen=True, kw_only=True):
    """What is to run, fully resolved: pure data."""

    job: JobId
    attempt: int
    epoch: int
    host: str
    """The host's identity: boxes of another host's worker are not its to touch."""
    store: str
    """The store's identity: two Holdfasts on one host leave each other's boxes alone."""
    type: str
    """`worker` or `agent`."""
    argv: tuple[str, ...]
    image: str | None
    """What a container is made from; runtimes without images ignore it."""
    cpus: int
    memory_mb: int
    pids: int = 512
    env: Mapping[str, str]
    work: Path
    """Mounted at /work, read-only unless `work_writable`."""
    work_writable: bool
    files: str | None = None
    """The upload that /work is filled with; None leaves it empty."""
    artifacts: Path
    """Mounted at /artifacts, writable."""
    inputs: Path | None = None
    """Mounted at /run/holdfast, read-only: an agent's task, context and branch, each a file."""
    secrets: Path | None = None
    """Mounted at /run/secrets, read-only: each secret a file."""
    exchange: Path | None = None
    """Mounted at /run/exchange, writable: what an agent reports, and the answers that it gets."""
    network: str = NO_NETWORK
    """`none`, or `host`: the network of its host."""
    directory: Path
    """This attempt's own, and the runtime's working directory: log, marks, pid file."""
    log_bytes: int = LOG_BYTES

    @property
    def name(self) -> str:
        """Its name: the same in every process, so that it can be found after a crash."""
        return box_name(self.job, self.attempt)

    @property
    def exchanged(self) -> tuple[Path, ...]:
        """The directories of the box beside its work and artifacts; its user owns them."""
        return tuple(mount.source for mount in mounts_of(self))


class Mount(Struct, frozen=True):
    """A directory of the host that a box sees, beside its work and artifacts."""

    variable: str
    """The variable of its environment that names it, by the path that its command sees."""
    source: Path
    target: str
    writable: bool = False


def mounts_of(box: Box) -> list[Mount]:
    """Return the mounts that a box has beside /work and /artifacts, in order."""
    found = []
    if box.inputs is not None:
        found.append(Mount(f"{PLACE_PREFIX}INPUTS", box.inputs, "/run/holdfast"))
    if box.secrets is not None:
        found.append(Mount(f"{PLACE_PREFIX}SECRETS", box.secrets, "/run/secrets"))
    if box.exchange is not None:
        found.append(Mount(f"{PLACE_PREFIX}EXCHANGE", box.exchange, "/run/exchange", True))
    return found


def places_inside(box: Box) -> dict[str, str]:
    """Return the variables that name the mounts of a box, in a runtime that has mounts."""
    return {mount.variable: mount.target for mount in mounts_of(box)}


def box_name(job: JobId, attempt: int) -> str:
    """Return the name of an attempt's box."""
    return f"hf-{job}-{attempt}"


class BoxExit(Struct, frozen=True, kw_only=True):
    """How a command ended, as observed. A death by signal N is the code 128+N."""

    code: int
    out_of_memory: bool = False
    """The runtime reports that a process of the box was killed for memory (D5): together with the
    code 137 it is the end of the job, with another code a detail of its failure."""


class BoxState(StrEnum):
    """What a look at a box shows."""

    ABSENT = "absent"
    """The runtime does not know it."""
    CREATED = "created"
    """It is there, and nothing of it has ever run."""
    RUNNING = "running"
    EXITED = "exited"
    """It ran and ended; its exit is known."""
    LOST = "lost"
    """It ran, and no exit code will ever be known: the host was rebooted, its monitor died."""


class Sight(Struct, frozen=True):
    """What a look at a box showed; `exit` exactly where it has exited."""

    state: BoxState
    exit: BoxExit | None = None


class BoxLabel(Struct, frozen=True, kw_only=True):
    """A box that a listing found, by the labels that it was made with."""

    name: str
    job: JobId
    attempt: int
    epoch: int


class Boxes(Protocol):
    """Makes, starts, watches and kills boxes on this host. All calls come from one event loop.

    A runtime that does not answer within a call's own limit raises `RuntimeTrouble`: nothing is
    known then, and nothing may be concluded from it. A box that cannot be made through its own
    fault (no such image, an invalid name) raises `BoxRefused`.
    """

    name: str
    """`podman`, `sandbox` or `process`."""
    survives: bool
    """Whether a box outlives the worker that started it."""
    isolated: bool
    """Whether it keeps a command from the host's files, processes and network."""

    async def prepare(self, box: Box) -> None:
        """Make a box ready to start, with its limits; nothing of its command runs.

        Done before by a worker that died, or twice: success, and the box is the same.
        """

    async def start(self, box: Box) -> None:
        """Start a prepared box. Called at most once per attempt, after the start is on record.

        Raise `BoxRefused` if the command cannot be started; then nothing of it runs. Never starts
        what has run before.
        """

    async def wait(self, box: Box) -> BoxExit:
        """Wait until a started box has ended, and return what was observed.

        Raise `BoxLost` where no exit code will be known. Cancelled, it stops waiting and leaves
        the box alone. Also for a box that another process started, if boxes survive.
        """

    async def terminate(self, box: Box) -> None:
        """Send SIGTERM to the command's first process. Succeeds for one that has ended."""

    async def kill(self, box: Box) -> None:
        """Kill every process of a box, and return once it is proven that none is left.

        Also of a box that was only prepared, or is unknown: then nothing of it may start later.
        Raise `BoxUnkillable` where processes are left, `RuntimeTrouble` where that is not known.
        """

    async def look(self, box: Box) -> Sight:
        """Return the state of a box without changing it, within a limit of its own."""

    async def list(self) -> Sequence[BoxLabel]:
        """Return all boxes of this host and store that the runtime knows, or that it left behind.

        For orphans only: one stuck box may keep a listing from answering.
        """

    async def remove(self, job: JobId, attempt: int) -> None:
        """Remove an ended box and what its runtime keeps of it; not its directory.

        Repeating, or an unknown box, is success. A running one is killed first.
        """

    async def close(self) -> None:
        """Let go of what belongs to this process; boxes that survive continue."""


class CommandFailed(HoldfastError, code="command_failed"):
    """A command ended by itself with another exit code than 0."""

    def __init__(self, exit: BoxExit) -> None:
        """Describe the exit."""
        code, text = describe_exit(exit)
        super().__init__(text, code=code)
        self.exit = exit
        # Where it was raised is of no interest: nothing is wrong with the worker.
        self.report = ErrorReport(type="CommandFailed", message=text, code=code)


class OutputsNotKept(CommandFailed, code="outputs_not_kept"):
    """A command exited with 0, and its outputs could not be kept: it has not succeeded."""

    def __init__(self, exit: BoxExit, cause: Exception) -> None:
        """Describe what went wrong with its outputs."""
        super().__init__(exit)
        self.code = cause.code if isinstance(cause, ArtifactsTooLarge) else type(self).code
        text = f"the command ended with exit code {exit.code}; its outputs were not kept: {cause}"
        self.report = ErrorReport(type="OutputsNotKept", message=text, code=self.code)


OUT_OF_MEMORY_CODE = 137
LAST_SIGNAL = 64


def describe_exit(exit: BoxExit) -> tuple[str, str]:
    """Return the error code and the text of an exit other than 0 (D4, D5)."""
    if exit.out_of_memory and exit.code == OUT_OF_MEMORY_CODE:
        return "oom_killed", "ran out of memory and was killed; exit code 137"
    text = f"ended with exit code {exit.code}"
    match exit.code:
        case 126:
            text = "is not executable; exit code 126"
        case 127:
            text = "was not found; exit code 127"
        case code if 128 < code <= 128 + LAST_SIGNAL:
            text = f"was killed by signal {code - 128}; exit code {code}"
    if exit.out_of_memory:
        text += "; a process of it ran out of memory"
    return CommandFailed.code, f"the command {text}"


class CommandStopped(CancelledError):
    """A command ended after it was asked to stop, or was killed, whatever its exit code."""

    def __init__(self, exit: BoxExit | None) -> None:
        """Keep the exit; None where nothing of the command ever ran."""
        super().__init__()
        self.exit = exit
