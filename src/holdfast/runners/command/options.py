"""How a worker is to run commands: what `app.worker(commands=…)` and `--commands` take."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct

from holdfast.errors import BadConfig
from holdfast.lifecycle.command_spec import QUEUES
from holdfast.runners.command.collect_artifacts import DEFAULT_LIMITS, ArtifactLimits
from holdfast.runners.command.profiles import AgentProfile, Secret, check_agents

AUTO = "auto"
PODMAN = "podman"
ISOLATED_RUNNERS = (PODMAN, "sandbox")
RUNNERS = (*ISOLATED_RUNNERS, "process")
"""What runs boxes, the best isolation first; `process` has none, and must be asked for by name."""
GRACE_SECONDS = 10.0
"""Between SIGTERM and SIGKILL (D6, D7)."""
PAUSE_SECONDS = 5.0
"""How long to wait before a runtime that failed is asked again (D14)."""
PATIENCE_SECONDS = 60.0
_HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Commands(Struct, frozen=True, kw_only=True):
    """How a worker runs commands on its host."""

    runner: str | Sequence[str] = AUTO
    """`podman`, `sandbox`, `process`, or several: the first is for jobs that leave it open. `auto`
    is podman where it works, else sandbox."""
    image: str | None = None
    """The image of a command that names none."""
    pull: Literal["never", "missing"] = "never"
    cpus: int | None = None
    """How many CPUs commands may take together; by default all of the host."""
    memory_gb: int | None = None
    """How much memory they may take; by default nine tenths of the host's."""
    directory: str | Path | None = None
    """Where their files are; by default as the app has it."""
    host: str | None = None
    """The name of this host, the same after each restart; by default made from the machine's."""
    queues: Sequence[str] = tuple(QUEUES.values())
    on_shutdown: Literal["leave", "kill"] = "leave"
    """Whether containers continue when the worker ends; the next worker of this host takes them
    over."""
    storage: Sequence[str] = ()
    """Options of podman for a storage of its own, such as `--root`."""
    artifacts: ArtifactLimits = DEFAULT_LIMITS
    """How much a command may leave in /artifacts."""
    agents: Mapping[str, AgentProfile] = {}
    """The profiles of agents that this host runs, by name."""
    secrets: Mapping[str, Secret] = {}
    """Where the secrets are that profiles name."""
    grace_seconds: float = GRACE_SECONDS
    """Between SIGTERM and SIGKILL."""
    patience_seconds: float = PATIENCE_SECONDS
    """After this long a command that would fit the empty host is waited for: nothing behind it is
    taken."""
    pause_seconds: float = PAUSE_SECONDS
    """Between two looks for the host's lock, for boxes that were left behind, and at a runtime
    that failed."""

    def __post_init__(self) -> None:
        """Refuse what no worker could do."""
        for name in self.runners:
            if name not in (AUTO, *RUNNERS):
                known = ", ".join((AUTO, *RUNNERS))
                raise BadConfig(f"there is no runner of commands {name!r}; there are {known}")
        if len(set(self.runners)) != len(self.runners) or not self.runners:
            raise BadConfig(f"name each runner of commands once, not {self.runner!r}")
        if self.host is not None and not _HOST_NAME.fullmatch(self.host):
            raise BadConfig(
                f"the host's name must be letters, digits, '.', '_' and '-', not {self.host!r}"
            )
        for what, number in (("cpus", self.cpus), ("memory_gb", self.memory_gb)):
            if number is not None and number < 1:
                raise BadConfig(f"commands need {what} of 1 or more, not {number}")
        check_agents(self.agents, self.secrets)

    @property
    def runners(self) -> tuple[str, ...]:
        """The runners by name, the default first."""
        return (self.runner,) if isinstance(self.runner, str) else tuple(self.runner)
