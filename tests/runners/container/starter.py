"""A process that starts a box and then only waits to be killed."""

from __future__ import annotations

import asyncio
import base64
import pickle
from pathlib import Path
from typing import Any

from holdfast.ports.box import Box
from holdfast.runners.container.podman import Podman
from holdfast.runners.container.settings import PodmanSettings


def packed(settings: PodmanSettings, box: Box) -> str:
    """Return both as text that the other process reads."""
    return base64.b64encode(pickle.dumps((settings, box))).decode()


async def start_and_stay(given: str, started: str) -> Any:
    """Start a box, leave a file, and wait."""
    settings, box = pickle.loads(base64.b64decode(given))
    podman = Podman(settings)
    await podman.prepare(box)
    await podman.start(box)
    waiting = asyncio.create_task(podman.wait(box))
    Path(started).touch()  # noqa: ASYNC240
    await waiting
