"""What a disk holds after a power cut, given what was written to it and what was synced.

What the disk is taken to do:
- A sync makes durable what was written to that file before the sync began. Of what came later,
  any part may be lost, whatever its order; a write may be torn between sectors of 512 bytes.
- A lost write beyond the end of the file may still leave the file longer, with zeros there.
- Creations and deletions reach the disk in their order. They are durable once a file is synced
  whose own creation was among them (SQLite syncs the directory then too), or once a deletion asks
  for a sync of the directory. Of the rest, any first part may have happened.
- A file that was there before is durable as it was found.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

SECTOR = 512


@dataclass(frozen=True, slots=True)
class Write:
    file: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    file: int
    size: int


@dataclass(frozen=True, slots=True)
class Sync:
    """`covers` is how many operations there were when it began: a later write is not synced."""

    file: int
    covers: int


@dataclass(frozen=True, slots=True)
class Create:
    name: str
    file: int


@dataclass(frozen=True, slots=True)
class Delete:
    name: str
    durable: bool


@dataclass(frozen=True, slots=True)
class Mark:
    label: str


Change = Write | Truncate
Naming = Create | Delete
Operation = Change | Naming | Sync | Mark


class Loss(StrEnum):
    """What becomes of everything that was not synced at the moment of the cut."""

    LOST = "all of it is lost"
    KEPT = "all of it is kept"
    RANDOM = "a random part is kept, by sectors"
    TORN = "all is kept but part of the last write"


class Disk:
    """What is durable after some first part of a recording, and what is not yet."""

    def __init__(self, found: Mapping[str, tuple[int, bytes]]) -> None:
        self._names = {name: number for name, (number, _) in found.items()}
        self._contents = {number: bytearray(content) for number, content in found.values()}
        self._changes: list[tuple[int, Change]] = []
        self._namings: list[tuple[int, Naming]] = []

    @property
    def has_unsynced(self) -> bool:
        return bool(self._changes or self._namings)

    def take(self, position: int, operation: Operation) -> None:
        match operation:
            case Write() | Truncate():
                self._changes.append((position, operation))
            case Create(_, file):
                self._contents[file] = bytearray()
                self._namings.append((position, operation))
            case Delete(_, durable):
                self._namings.append((position, operation))
                if durable:
                    self._settle_names(before=position + 1)
            case Sync(file, covers):
                self._settle_file(file, before=covers)
            case Mark():
                pass

    def after_crash(self, loss: Loss, chance: random.Random) -> dict[str, bytes]:
        """The files that a cut now could leave, by name."""
        names = dict(self._names)
        for _, naming in self._namings[: _first_part(loss, len(self._namings), chance)]:
            _name(names, naming)
        contents = {file: bytearray(self._contents[file]) for file in names.values()}
        changes = [change for _, change in self._changes if change.file in contents]
        for change in _survivors(loss, changes, contents, chance):
            _apply(contents[change.file], change)
        return {name: bytes(contents[file]) for name, file in names.items()}

    def _settle_file(self, file: int, *, before: int) -> None:
        rest = []
        for position, change in self._changes:
            if change.file == file and position < before:
                _apply(self._contents[file], change)
            else:
                rest.append((position, change))
        self._changes = rest
        if any(isinstance(naming, Create) and naming.file == file for _, naming in self._namings):
            self._settle_names(before=before)

    def _settle_names(self, *, before: int) -> None:
        for position, naming in self._namings:
            if position < before:
                _name(self._names, naming)
        self._namings = [pair for pair in self._namings if pair[0] >= before]


def _name(names: dict[str, int], naming: Naming) -> None:
    match naming:
        case Create(name, file):
            names[name] = file
        case Delete(name, _):
            names.pop(name, None)


def _apply(content: bytearray, change: Change) -> None:
    match change:
        case Write(_, offset, data):
            _lengthen(content, offset)
            content[offset : offset + len(data)] = data
        case Truncate(_, size):
            del content[size:]
            _lengthen(content, size)


def _lengthen(content: bytearray, size: int) -> None:
    content.extend(bytes(max(0, size - len(content))))


def _first_part(loss: Loss, length: int, chance: random.Random) -> int:
    match loss:
        case Loss.LOST:
            return 0
        case Loss.RANDOM:
            return chance.randint(0, length)
        case Loss.KEPT | Loss.TORN:
            return length


def _survivors(
    loss: Loss, changes: list[Change], contents: dict[int, bytearray], chance: random.Random
) -> Iterator[Change]:
    match loss:
        case Loss.LOST:
            return
        case Loss.KEPT:
            yield from changes
        case Loss.TORN:
            last = max((i for i, c in enumerate(changes) if isinstance(c, Write)), default=-1)
            for index, change in enumerate(changes):
                if index == last and isinstance(change, Write):
                    yield from _torn(change, chance)
                else:
                    yield change
        case Loss.RANDOM:
            # Drawn once per image, so that nearly whole and nearly empty ones occur as well.
            keep = chance.choice([0.1, 0.5, 0.9])
            for change in changes:
                yield from _chance_survivors(change, contents[change.file], keep, chance)


def _chance_survivors(
    change: Change, content: bytearray, keep: float, chance: random.Random
) -> Iterator[Change]:
    if chance.random() < keep:
        yield change
    elif isinstance(change, Write):
        end = change.offset + len(change.data)
        match chance.choice(["torn", "zeros", "lost"]):
            case "torn":
                yield from _torn(change, chance)
            case "zeros" if end > len(content):
                yield Truncate(change.file, end)
            case _:
                pass


def _torn(write: Write, chance: random.Random) -> Iterator[Write]:
    """Some of the sectors that a write touches, not all."""
    sectors = list(_by_sector(write))
    kept = set(chance.sample(range(len(sectors)), chance.randrange(len(sectors))))
    yield from (sector for index, sector in enumerate(sectors) if index in kept)


def _by_sector(write: Write) -> Iterator[Write]:
    end = write.offset + len(write.data)
    start = write.offset
    while start < end:
        stop = min(end, (start // SECTOR + 1) * SECTOR)
        yield Write(write.file, start, write.data[start - write.offset : stop - write.offset])
        start = stop
