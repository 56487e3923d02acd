"""A worker of commands in a process of its own: its store and its settings as arguments."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys

import msgspec

from holdfast.app.app import Holdfast
from holdfast.runners.command.collect_artifacts import ArtifactLimits
from holdfast.runners.command.options import Commands
from holdfast.runners.command.profiles import AgentProfile, Secret


async def main(url: str, settings: str) -> None:
    """Work until SIGTERM."""
    given = msgspec.json.decode(settings)
    given["artifacts"] = ArtifactLimits(**given["artifacts"])
    given["agents"] = msgspec.convert(given.get("agents", {}), dict[str, AgentProfile])
    given["secrets"] = msgspec.convert(given.get("secrets", {}), dict[str, Secret])
    commands = Commands(**given)
    app = Holdfast(url)
    worker = app.worker(commands=commands, grace="5s", tick="100ms", poll="50ms", exits=True)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
    await worker.run()
    await app.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    asyncio.run(main(*sys.argv[1:]))
