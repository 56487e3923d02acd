"""What makes boxes on this host, and which of them made a box."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from holdfast.errors import RuntimeTrouble
from holdfast.lifecycle.record import Job, JobId
from holdfast.lifecycle.routes import RUNNER_PREFIX
from holdfast.ports.box import Box, Boxes
from holdfast.runners.command.files import read_note


class BoxMakers:
    """All runtimes of one host; the first is for jobs that insist on none."""

    def __init__(self, boxes: Sequence[Boxes]) -> None:
        self._boxes: Mapping[str, Boxes] = {one.name: one for one in boxes}
        self._default = boxes[0]

    @property
    def names(self) -> Sequence[str]:
        """Their names."""
        return tuple(self._boxes)

    def choose(self, job: Job) -> Boxes | None:
        """Return the runtime that a job insists on, or the default one."""
        for need in job.needs:
            if need.startswith(RUNNER_PREFIX):
                return self._boxes.get(need.removeprefix(RUNNER_PREFIX))
        return self._default

    async def find_maker(self, box: Box) -> tuple[Boxes, Box] | None:
        """Return what made a box, and the box as it was made; None if nothing did."""
        note = await asyncio.to_thread(read_note, box.directory)
        if note is None:
            return None
        if note.maker not in self._boxes:
            text = f"its box was made by {note.maker}, which this worker does not have"
            raise RuntimeTrouble(text)
        return self._boxes[note.maker], replace(box, epoch=note.epoch)

    async def remove(self, job: JobId, attempt: int) -> None:
        """Remove a box that has ended, whatever made it."""
        for boxes in self._boxes.values():
            await boxes.remove(job, attempt)

    async def close(self) -> None:
        """Let go; boxes that were left to continue do."""
        await asyncio.gather(*(boxes.close() for boxes in self._boxes.values()))
