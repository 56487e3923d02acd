"""One call of Podman's command line: bounded in time, in number and in what is read of it.

A call over its limit is abandoned, never killed: a Podman that is killed while it starts a
container leaves its monitor and a half-started process behind.
"""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from msgspec import Struct

from holdfast.errors import BoxRefused, RuntimeTrouble
from holdfast.runners.container.pid_wait import ProcessHandle, wait_for_first_end

AT_ONCE = 4
"""Calls of a kind at a time: more starts than this are not faster."""
ABANDONED_MOST = 16
"""Calls that may hang before no other is made: each takes 34 MB."""
_OUTPUT_BYTES = 4 << 20
_ERROR_CHARACTERS = 2000
_VARIABLES = frozenset(
    {"HOME", "LANG", "PATH", "REGISTRY_AUTH_FILE", "TMPDIR", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"}
    | {"CONTAINERS_CONF", "CONTAINERS_REGISTRIES_CONF", "CONTAINERS_STORAGE_CONF"}
    | {"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"}
)
"""What Podman and its monitors get of our environment: they need no credentials of the store, and
the settings with which an operator calls Podman by hand."""


class Answer(Struct, frozen=True):
    """How a call ended, and what it wrote."""

    code: int
    output: bytes
    error: str

    @property
    def ok(self) -> bool:
        """Whether it succeeded."""
        return self.code == 0


class PodmanCli:
    """Calls Podman or its runtime.

    Calls that make boxes and calls that look have places of their own: starts that hang must not
    keep every look waiting.
    """

    def __init__(self, program: str, options: Sequence[str], directory: Path) -> None:
        """Put the options in front of every call; run it in `directory` unless it names another."""
        self._command = (program, *options)
        self._directory = directory
        self._making = asyncio.Semaphore(AT_ONCE)
        self._looking = asyncio.Semaphore(AT_ONCE)
        self._abandoned: set[subprocess.Popen[bytes]] = set()

    async def look(self, *arguments: str, limit: float) -> Answer:
        """Call Podman for what starts no process of a box."""
        return await self._call(arguments, self._looking, self._directory, limit, None)

    async def make(
        self, *arguments: str, limit: float, directory: Path, trace: int | None = None
    ) -> Answer:
        """Call Podman for what makes or starts a box; it and its monitor inherit `trace`."""
        return await self._call(arguments, self._making, directory, limit, trace)

    async def _call(
        self,
        arguments: Sequence[str],
        places: asyncio.Semaphore,
        directory: Path,
        limit: float,
        trace: int | None,
    ) -> Answer:
        name = next((each for each in arguments if not each.startswith("-")), "")
        try:
            async with asyncio.timeout(limit), places:
                return await self._run(arguments, directory, trace)
        except TimeoutError:
            raise RuntimeTrouble(f"podman {name} has not answered within {limit:g} s") from None

    async def _run(self, arguments: Sequence[str], directory: Path, trace: int | None) -> Answer:
        self._abandoned = {each for each in self._abandoned if each.returncode is None}
        if len(self._abandoned) >= ABANDONED_MOST:
            raise RuntimeTrouble(f"{len(self._abandoned)} calls of podman hang")
        # Files and not pipes: a pipe would kill Podman by SIGPIPE once we are dead, and a monitor
        # that inherited it would keep us waiting for its end.
        with _memory_file("output") as output, _memory_file("error") as error:
            process = self._start(arguments, directory, trace, output.fileno(), error.fileno())
            await self._wait(process)
            error_text = _read(error.fileno()).decode(errors="replace")
            return Answer(process.returncode, _read(output.fileno()), _tail(error_text))

    def _start(
        self,
        arguments: Sequence[str],
        directory: Path,
        trace: int | None,
        output: int,
        error: int,
    ) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                [*self._command, *arguments],
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=error,
                env={name: os.environ[name] for name in _VARIABLES & os.environ.keys()},
                pass_fds=() if trace is None else (trace,),
                start_new_session=True,
            )
        except OSError as refusal:
            if refusal.errno == errno.E2BIG:
                raise BoxRefused("the command and its environment are too long") from refusal
            raise RuntimeTrouble(f"podman cannot be started: {refusal}") from refusal

    async def _wait(self, process: subprocess.Popen[bytes]) -> None:
        try:
            with ProcessHandle(os.pidfd_open(process.pid)) as handle:
                await wait_for_first_end([handle])
        except BaseException:
            self._abandon(process)
            raise
        process.wait()

    def _abandon(self, process: subprocess.Popen[bytes]) -> None:
        """Leave a call to itself; a thread reaps it, also after this loop is closed."""
        self._abandoned.add(process)
        threading.Thread(target=process.wait, name=f"podman-{process.pid}", daemon=True).start()


def _memory_file(name: str) -> IO[bytes]:
    return os.fdopen(os.memfd_create(f"holdfast-podman-{name}"), "w+b")


def _read(descriptor: int) -> bytes:
    return os.pread(descriptor, _OUTPUT_BYTES, 0)


def _tail(error: str) -> str:
    """Return the end of what was written: Podman's own error is in its last line."""
    return error.strip()[-_ERROR_CHARACTERS:].removeprefix("Error: ")
