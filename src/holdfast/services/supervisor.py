"""The supervisor: keeps several worker processes under one parent running."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Sequence

from holdfast.services.loop import rest_until

log = logging.getLogger(__name__)

LIFELINE = "HOLDFAST_LIFELINE"
"""Names the descriptor by which a worker process notices that its parent is gone."""
MEMBER = "HOLDFAST_MEMBER"
"""Names the number of a worker process, from 0, by which it takes a port of its own."""
SHORT_LIFE_SECONDS = 5.0
SHORT_LIVES = 5
"""A process that dies this often in a row right after its start is not started again."""
LONGEST_PAUSE_SECONDS = 10.0


class WorkerSupervisor:
    """Keeps a number of processes running until it is stopped."""

    def __init__(self, command: Sequence[str], size: int) -> None:
        """Run `command`, `size` times at once."""
        self._command = list(command)
        self._size = size
        self._stopping = asyncio.Event()
        self._processes: set[asyncio.subprocess.Process] = set()
        self.gave_up = False

    def stop(self) -> None:
        """Ask all processes to end; called again, kill them."""
        number = signal.SIGKILL if self._stopping.is_set() else signal.SIGTERM
        self._stopping.set()
        for process in self._processes:
            if process.returncode is None:
                process.send_signal(number)

    async def run(self) -> int:
        """Run until stopped; return the exit code: 0 only if all processes ended in order."""
        read, write = os.pipe()
        try:
            codes = await asyncio.gather(
                *(self._keep_running(read, number) for number in range(self._size))
            )
        finally:
            os.close(read)
            os.close(write)
        return max((abs(code) and 1 for code in codes), default=0)

    async def _keep_running(self, lifeline: int, number: int) -> int:
        """Keep one process running; return how the last one ended."""
        short_lives, pause = 0, 0.5
        while True:
            started_at = time.monotonic()
            code = await self._run_one(lifeline, number)
            if self._stopping.is_set():
                return code
            if time.monotonic() - started_at < SHORT_LIFE_SECONDS:
                short_lives += 1
            else:
                short_lives, pause = 0, 0.5
            if short_lives >= SHORT_LIVES:
                log.critical("a worker died %s times at its start: giving up", short_lives)
                self.gave_up = True
                self.stop()
                return code or 1
            log.error("a worker ended with code %s; another one starts", code)
            await rest_until(self._stopping, pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    async def _run_one(self, lifeline: int, number: int) -> int:
        if self._stopping.is_set():
            return 0
        process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=(lifeline,),
            env={**os.environ, LIFELINE: str(lifeline), MEMBER: str(number)},
        )
        self._processes.add(process)
        try:
            if self._stopping.is_set():
                process.send_signal(signal.SIGTERM)
            return await process.wait()
        finally:
            self._processes.discard(process)


def watch_lifeline(on_end: asyncio.Event) -> None:
    """Set the event when the parent of this process is gone: nothing else would stop it."""
    text = os.environ.pop(LIFELINE, "")
    if not text.isdigit():
        return
    descriptor = int(text)
    loop = asyncio.get_running_loop()

    def ended() -> None:
        loop.remove_reader(descriptor)
        log.warning("the parent process is gone: stopping")
        on_end.set()

    loop.add_reader(descriptor, ended)
