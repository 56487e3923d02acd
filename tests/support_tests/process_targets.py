"""What the processes of test_processes run; a module of its own, since importing pytest is slow."""

import os
import time
from pathlib import Path


def note_start(directory: str, index: int) -> dict[str, float]:
    print("what a target prints does no harm")
    (Path(directory) / str(index)).touch()
    return {"index": index, "started_at": time.monotonic()}


async def double(number: int) -> int:
    return 2 * number


def fail(index: int) -> None:
    if index == 1:
        raise ValueError(f"no luck in {index}")


def die() -> None:
    os._exit(7)


def hang() -> None:
    time.sleep(60)
