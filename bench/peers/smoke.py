"""Every verb of every peer once, with few jobs: shows that they run, not how fast they are."""

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from bench.engines import SETTINGS
from bench.peers import DIRECTORY, Peer
from bench.protocol import Option, Program, ProgramError, Reply, Unsupported
from tests.support.postgres import PostgresCluster

JOBS = 200
LIMIT_SECONDS = 300.0


def smoke(peers: Sequence[Peer]) -> bool:
    """Try all of them, installed as they are, and print a table; False when any failed."""
    passed = True
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        cluster = stack.enter_context(PostgresCluster(SETTINGS))
        for peer in peers:
            url = _database(peer, cluster, scratch)
            try:
                for line in _Trial(peer, url).lines():
                    print(f"{peer.name:16} {line}", flush=True)
            except (AssertionError, ProgramError) as error:
                print(f"{peer.name:16} FAILED: {error}", flush=True)
                passed = False
    return passed


def _database(peer: Peer, cluster: PostgresCluster, scratch: Path) -> str:
    if peer.engine == "sqlite":
        return str(scratch / f"{peer.name}.db")
    return cluster.create_database(peer.name.replace("-", "_"))


class _Trial:
    """One peer on a database of its own."""

    def __init__(self, peer: Peer, url: str) -> None:
        self._peer = peer
        self._program = Program(peer.name, peer.argv(DIRECTORY))
        self._url = url

    def lines(self) -> Iterator[str]:
        """Try verb after verb; a line for each."""
        about = self._program.ask("version", limit_seconds=LIMIT_SECONDS)
        yield f"{about['version']}; keeps {about['keeps']}; {about['settings']}"
        self._ask("setup")
        yield self._rate("fill", bytes=1000)
        self._expect_left(JOBS)
        for mode, settings in self._peer.modes:
            yield f"{self._rate('drain', mode=mode)} ({mode}: {settings})"
            self._expect_left(0)
            self._rate("fill")
        yield self._shared()
        yield self._rate("single")
        yield f"{self._rate('single', callers=20)} (20 callers)"
        self._expect_left(2 * JOBS)
        self._ask("setup")
        self._expect_left(0)
        times = self._ask("latency", samples=10)["ms"]
        assert len(times) == 10, times
        yield f"latency {median(times):12,.1f} ms"
        self._expect_left(0)

    def _rate(self, verb: str, **options: Option) -> str:
        try:
            answer = self._ask(verb, jobs=JOBS, **options)
        except Unsupported as error:
            return f"{verb:7} {error}"
        assert answer["jobs"] == JOBS, answer
        return f"{verb:7} {JOBS / answer['seconds']:12,.0f}/s"

    def _shared(self) -> str:
        worker = self._program.start("drain", shared=True, url=self._url)
        try:
            self._wait_until_drained()
            worker.stop()
        finally:
            worker.kill()
        return f"shared  {'ok':>12}"

    def _wait_until_drained(self) -> None:
        end = time.monotonic() + LIMIT_SECONDS
        while self._ask("left")["left"]:
            assert time.monotonic() < end, "a shared worker did not drain the queue"

    def _expect_left(self, expected: int) -> None:
        left = self._ask("left")["left"]
        assert left == expected, f"{left} jobs left, not {expected}"

    def _ask(self, verb: str, **options: Option) -> Reply:
        return self._program.ask(verb, limit_seconds=LIMIT_SECONDS, url=self._url, **options)
