"""The peers that Holdfast is measured against: what they are, their versions, how they are started.

Each is driven by a program of its own under `programs/`, which runs in an environment of its own
under `out/bench/peers` and knows nothing of Holdfast. One verb a run; one line of JSON on stdout.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Literal, Protocol

from bench.peers.environments import NodeEnvironment, PythonEnvironment

DIRECTORY = Path(__file__).resolve().parents[2] / "out" / "bench" / "peers"
"""Where the bench installs them; not under version control."""

PROGRAMS = Path(__file__).resolve().parent / "programs"

EngineName = Literal["postgresql", "sqlite"]


class Pace(Enum):
    """How many jobs a second a contender does, about: tens of thousands, thousands or hundreds."""

    FAST = auto()
    MIDDLING = auto()
    SLOW = auto()


class Environment(Protocol):
    """Where a peer's packages live, apart from the project's own."""

    def install(self, directory: Path) -> None:
        """Bring the packages in; nothing happens when they are there already."""

    def argv(self, directory: Path, program: Path) -> list[str]:
        """How `program` is started so that it finds the packages; the verb follows."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """One contender: its packages, its program, and the modes that its worker can run in."""

    name: str
    engine: EngineName
    modes: tuple[tuple[str, str], ...]
    """Name and settings of each mode, the best for draining first; `--mode` takes the name."""
    environment: Environment
    program: str
    pace: Pace = Pace.FAST
    """The slower get fewer jobs."""

    def install(self, directory: Path) -> None:
        """Bring its packages into `directory`; raises InstallError with the remedy."""
        self.environment.install(directory)

    def argv(self, directory: Path) -> list[str]:
        """How its program is started from what was installed into `directory`."""
        return self.environment.argv(directory, PROGRAMS / self.program)


NPM = NodeEnvironment(packages={"graphile-worker": "0.17.3", "pg-boss": "10.4.2"})


def _python(name: str, packages: Mapping[str, str]) -> PythonEnvironment:
    return PythonEnvironment(name=name, packages=packages)


PEERS: tuple[Peer, ...] = (
    Peer(
        name="graphile-worker",
        engine="postgresql",
        modes=(
            ("batched", "concurrency 24, localQueue 500, batch delays 0"),
            ("default", "as installed: one job at a time"),
        ),
        environment=NPM,
        program="graphile_peer.mjs",
    ),
    Peer(
        name="pgqueuer",
        engine="postgresql",
        modes=(("batched", "asyncpg, uvloop, batch 500"),),
        environment=_python(
            "pgqueuer", {"pgqueuer": "1.6.0", "asyncpg": "0.32.0", "uvloop": "0.23.0"}
        ),
        program="pgqueuer_peer.py",
    ),
    Peer(
        name="pg-boss",
        engine="postgresql",
        # Its own worker takes one batch each half second at most, so none drains by it.
        modes=(("batched", "fetch and complete by batches of 500, two loops"),),
        environment=NPM,
        program="pgboss_peer.mjs",
        # With more jobs waiting it slows down: 6,000/s of 100,000, 3,000/s of 200,000.
        pace=Pace.MIDDLING,
    ),
    Peer(
        name="awa-pg",
        engine="postgresql",
        modes=(("batched", "500 workers, claims of 500"),),
        environment=_python("awa-pg", {"awa-pg": "0.6.9"}),
        program="awa_peer.py",
        pace=Pace.MIDDLING,
    ),
    Peer(
        name="absurd-sdk",
        engine="postgresql",
        modes=(("batched", "four clients in threads, batch 50"),),
        environment=_python(
            "absurd-sdk",
            {"absurd-sdk": "0.5.1", "absurdctl": "0.5.1", "psycopg[binary]": "3.3.8"},
        ),
        program="absurd_peer.py",
        pace=Pace.SLOW,
    ),
    Peer(
        name="procrastinate",
        engine="postgresql",
        modes=(("concurrent", "concurrency 10"),),
        environment=_python(
            "procrastinate", {"procrastinate": "3.10.0", "psycopg[binary]": "3.3.8"}
        ),
        program="procrastinate_peer.py",
        pace=Pace.SLOW,
    ),
    Peer(
        name="dbos",
        engine="postgresql",
        modes=(("threads", "eight threads, claims of 500"),),
        environment=_python("dbos", {"dbos": "3.3.0", "psycopg[binary]": "3.3.8"}),
        program="dbos_peer.py",
        pace=Pace.SLOW,
    ),
    Peer(
        name="huey",
        engine="sqlite",
        modes=(("one", "one worker"),),
        environment=_python("huey", {"huey": "3.5.4"}),
        program="huey_peer.py",
        pace=Pace.MIDDLING,
    ),
)
"""All versions are pinned here, and nowhere else."""
