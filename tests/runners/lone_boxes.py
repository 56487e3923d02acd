"""Run as a process of its own: start one box, and keep it until this process is killed."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from msgspec import json

from holdfast.ports.box import Box
from holdfast.runners.bare.boxes import BareBoxes
from holdfast.runners.local.boxes import LocalBoxes
from holdfast.runners.sandbox.boxes import SandboxBoxes

KINDS: dict[str, type[BareBoxes | SandboxBoxes]] = {"process": BareBoxes, "sandbox": SandboxBoxes}


async def main(kind: str, store: str, box: Box) -> None:
    boxes: LocalBoxes = KINDS[kind].on_this_host(store)
    await boxes.prepare(box)
    await boxes.start(box)
    await boxes.wait(box)


if __name__ == "__main__":
    kind, store, file = sys.argv[1:]
    described = json.decode(Path(file).read_bytes(), type=Box, dec_hook=lambda to, text: to(text))
    asyncio.run(main(kind, store, described))
