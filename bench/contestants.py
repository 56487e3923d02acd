"""Who takes part: Holdfast and its store on both engines, and the peers in each of their modes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from bench.peers import DIRECTORY as PEERS_DIRECTORY
from bench.peers import Pace
from bench.protocol import ROOT, Program, ProgramError, Unsupported

DIRECTORY = PEERS_DIRECTORY.parent
"""Where the bench installs what it needs, outside the project's environment."""
HOLDFAST, HOLDFAST_SQLITE = "holdfast", "holdfast on SQLite"
STORE, STORE_SQLITE = "store", "store on SQLite"
AT = "@"
"""Between the name of one of ours and the revision that it is of: holdfast@9e5ff28 on SQLite."""


class Contestant(Struct, frozen=True, kw_only=True):
    """One program in one mode."""

    name: str
    family: str
    """Whose modes it shares: one peer, measured once where modes make no difference.

    Holdfast at another revision is of the family of today's.
    """
    engine: str
    argv: tuple[str, ...]
    mode: str | None = None
    """Passed to `drain`; for Holdfast the scenario decides it."""
    first: bool = True
    """Whether it is the first of its family, which fills and latencies are measured with."""
    pace: Pace = Pace.FAST
    ours: bool = False
    """Whether `holdfast verify` must pass after it."""
    settings: str = ""
    directory: Path = ROOT
    """Where its program is started."""

    @property
    def program(self) -> Program:
        """Its program."""
        return Program(self.name, self.argv, self.directory)

    @property
    def is_store(self) -> bool:
        """Whether there is no worker."""
        return self.family in (STORE, STORE_SQLITE)

    @property
    def command_line(self) -> tuple[str, ...]:
        """How the `holdfast` command of its own tree is started, if it is one of ours."""
        return (self.argv[0], "-m", "holdfast.cli")


class Card(Struct, frozen=True, kw_only=True):
    """What the report shows about a contestant."""

    name: str
    engine: str
    version: str
    settings: str
    keeps: str


def is_ours(name: str) -> bool:
    """Return whether a name is Holdfast's or its store's, of today or of another revision."""
    return name.partition(" ")[0].partition(AT)[0] in (HOLDFAST, STORE)


def before(name: str, ours: str) -> bool:
    """Return whether a name is another revision of one of ours."""
    first, *rest = name.split(" ")
    base, at, _ = first.partition(AT)
    return bool(at) and " ".join([base, *rest]) == ours


def own() -> list[Contestant]:
    """List Holdfast, and its store without a worker."""
    holdfast = (sys.executable, "-m", "bench.programs.holdfast")
    store = (sys.executable, "-m", "bench.programs.store")
    return [
        _own(HOLDFAST, "postgresql", holdfast),
        _own(HOLDFAST_SQLITE, "sqlite", holdfast),
        _own(STORE, "postgresql", store),
        _own(STORE_SQLITE, "sqlite", store),
    ]


def _own(name: str, engine: str, argv: tuple[str, ...]) -> Contestant:
    return Contestant(name=name, family=name, engine=engine, argv=argv, ours=True)


class Peer(Protocol):
    """What the registry of peers gives of each."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def engine(self) -> str:
        """postgresql or sqlite."""

    @property
    def modes(self) -> Sequence[tuple[str, str]]:
        """Name and settings of each mode, the best for draining first."""

    @property
    def pace(self) -> Pace:
        """Whether it gets fewer jobs."""

    def install(self, directory: Path) -> None:
        """Bring its packages in; raises where that cannot be done."""

    def argv(self, directory: Path) -> list[str]:
        """Return the command that starts its program."""


def install(
    peers: Iterable[Peer], report: Callable[[str], None], directory: Path = PEERS_DIRECTORY
) -> tuple[list[Contestant], dict[str, str]]:
    """Install peers, and list each in its modes; with them, who is missing and why."""
    found: list[Contestant] = []
    missing: dict[str, str] = {}
    for peer in peers:
        try:
            peer.install(directory)
        except Exception as error:  # noqa: BLE001  the rest goes on without it
            missing[peer.name] = f"could not be installed: {error}"
            report(f"{peer.name} {missing[peer.name]}")
        else:
            found += in_modes(peer, tuple(peer.argv(directory)))
    return found, missing


def in_modes(peer: Peer, argv: tuple[str, ...]) -> list[Contestant]:
    """List a peer once for each of its modes, by its bare name if there is only one."""
    several = len(peer.modes) > 1
    return [
        Contestant(
            name=f"{peer.name} {mode}" if several else peer.name,
            family=peer.name,
            engine=peer.engine,
            argv=argv,
            mode=mode,
            first=number == 0,
            pace=Pace.SLOW if several and mode == "default" else peer.pace,
            settings=settings,
        )
        for number, (mode, settings) in enumerate(peer.modes)
    ]


def card(one: Contestant) -> Card:
    """Ask a contestant what it is."""
    try:
        answer = one.program.ask("version")
    except Unsupported as error:
        raise ProgramError(str(error)) from error
    settings = "; ".join(filter(None, (one.settings, str(answer.get("settings", "")))))
    return Card(
        name=one.name,
        engine=one.engine,
        version=str(answer.get("version", "?")),
        settings=settings,
        keeps=str(answer.get("keeps", "?")),
    )


def chosen(all_: Sequence[Contestant], asked: Sequence[str]) -> list[Contestant]:
    """Return those whose name starts with one of the words; all if none is given."""
    if not asked:
        return list(all_)
    return [one for one in all_ if any(_is_asked(one, word) for word in asked)]


def _is_asked(one: Contestant, word: str) -> bool:
    return one.name.startswith(word)
