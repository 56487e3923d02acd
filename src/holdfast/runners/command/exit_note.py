"""The exit of a box, noted on its host: a runtime whose boxes do not survive forgets it.

It is noted once the box is dead, and read if its worker died before the end was on record, such as
while the outputs were kept.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec

from holdfast.ports.box import Box, Boxes, BoxExit, BoxState, Sight
from holdfast.runners.command.files import write_whole

log = logging.getLogger(__name__)

NOTE_FILE = "exit"


def note_exit(box: Box, exit: BoxExit) -> None:
    """Note how a dead box ended; without a note, such as on a full disk, it is known here alone."""
    try:
        write_whole(box.directory / NOTE_FILE, msgspec.json.encode(exit))
    except OSError as error:
        log.warning("%s: its exit could not be noted: %s", box.name, error)


async def look_at(boxes: Boxes, box: Box) -> Sight:
    """Look at a box; one that its runtime does not know any more may have left a note."""
    sight = await boxes.look(box)
    if sight.state in (BoxState.LOST, BoxState.ABSENT):
        exit = await asyncio.to_thread(_read_exit, box)
        return sight if exit is None else Sight(BoxState.EXITED, exit)
    return sight


def _read_exit(box: Box) -> BoxExit | None:
    try:
        return msgspec.json.decode((box.directory / NOTE_FILE).read_bytes(), type=BoxExit)
    except (FileNotFoundError, msgspec.MsgspecError):
        # A note that a power cut has torn is none.
        return None
