"""A crew: several worker processes under one parent that starts, restarts and stops them."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Sequence

log = logging.getLogger(__name__)

LIFELINE = "HOLDFAST_LIFELINE"
"""Names the descriptor by which a member of a crew notices that its parent is gone."""
MEMBER = "HOLDFAST_MEMBER"
"""Tells a member its number, from 0, by which it takes a port of its own."""
SHORT_LIFE_SECONDS = 5.0
SHORT_LIVES = 5
"""A member that dies so often in a row right after its start is not started again."""
LONGEST_PAUSE_SECONDS = 10.0


class Crew:
    """Keeps a number of processes running until it is stopped."""

    def __init__(self, command: Sequence[str], size: int) -> None:
        """Run `command`, `size` times at once."""
        self._command = list(command)
        self._size = size
        self._stopping = asyncio.Event()
        self._members: set[asyncio.subprocess.Process] = set()
        self.gave_up = False

    def stop(self) -> None:
        """Ask all members to end; asked again, kill them."""
        number = signal.SIGKILL if self._stopping.is_set() else signal.SIGTERM
        self._stopping.set()
        for member in self._members:
            if member.returncode is None:
                member.send_signal(number)

    async def run(self) -> int:
        """Run until stopped; tells the exit code: 0 only if all members ended in order."""
        read, write = os.pipe()
        try:
            codes = await asyncio.gather(
                *(self._keep(read, number) for number in range(self._size))
            )
        finally:
            os.close(read)
            os.close(write)
        return max((abs(code) and 1 for code in codes), default=0)

    async def _keep(self, lifeline: int, number: int) -> int:
        """Keep one member running; tells how the last one ended."""
        short_lives, pause = 0, 0.5
        while True:
            began = time.monotonic()
            code = await self._run_one(lifeline, number)
            if self._stopping.is_set():
                return code
            if time.monotonic() - began < SHORT_LIFE_SECONDS:
                short_lives += 1
            else:
                short_lives, pause = 0, 0.5
            if short_lives >= SHORT_LIVES:
                log.critical("a worker died %s times at its start: giving up", short_lives)
                self.gave_up = True
                self.stop()
                return code or 1
            log.error("a worker ended with code %s; another one starts", code)
            await self._rest(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    async def _run_one(self, lifeline: int, number: int) -> int:
        if self._stopping.is_set():
            return 0
        member = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=(lifeline,),
            env={**os.environ, LIFELINE: str(lifeline), MEMBER: str(number)},
        )
        self._members.add(member)
        try:
            if self._stopping.is_set():
                member.send_signal(signal.SIGTERM)
            return await member.wait()
        finally:
            self._members.discard(member)

    async def _rest(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return


def watch_lifeline(on_end: asyncio.Event) -> None:
    """Set the event when the parent of this member is gone: nobody else would stop it."""
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
