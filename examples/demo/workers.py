"""The workers of the demo: processes of `holdfast worker`, one of which is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import Process
from pathlib import Path

from examples.demo.shop import PLACE

ROOT = Path(__file__).resolve().parents[2]
STOP_SECONDS = 20.0


class Workers:
    """Starts and stops workers; their logs are files in the directory of the demo."""

    def __init__(self, place: Path, url: str) -> None:
        """Use a directory and a store."""
        self._place = place
        self.environment = {**os.environ, "HOLDFAST_URL": url, PLACE: str(place)}
        self._workers: list[Process] = []

    async def start(self, *options: str) -> Process:
        """Start a worker."""
        log = self._place / f"worker-{len(self._workers) + 1}.log"
        with log.open("wb") as file:
            worker = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "holdfast.cli", "worker", "examples.demo.shop:app"),
                *options,
                cwd=ROOT,
                env=self.environment,
                stdout=file,
                stderr=file,
            )
        self._workers.append(worker)
        return worker

    async def kill(self, worker: Process) -> None:
        """Kill a worker with SIGKILL."""
        worker.send_signal(signal.SIGKILL)
        await worker.wait()

    async def stop(self) -> list[int]:
        """Stop all workers and return their exit codes."""
        running = [worker for worker in self._workers if worker.returncode is None]
        for worker in running:
            worker.terminate()
        async with asyncio.timeout(STOP_SECONDS):
            return [await worker.wait() for worker in running]

    async def kill_all(self) -> None:
        """Leave no process behind, however the demo ended."""
        for worker in self._workers:
            if worker.returncode is None:
                worker.kill()
                await worker.wait()
