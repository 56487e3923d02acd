"""Power cuts for files in directories: record what is written and synced, then rebuild the tree.

What the disk is taken to do, which is what POSIX allows:
- A sync of a file makes durable what was written to it; a sync of a directory, the names in it.
  Neither does the other's part, and a name does not bring its directory's own name with it.
- What was not synced may be lost, or kept. A file whose name is kept may have lost its content.

A recording replaces functions of `os`, and sees only what this process does through them.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest


@dataclass
class _File:
    content: bytearray = field(default_factory=bytearray)
    synced: bytes = b""


_Entry = _File | None
"""A file; None for a directory."""
_Names = dict[Path, dict[str, _Entry]]


@dataclass
class Tree:
    """A tree of files with what is durable of it."""

    names: _Names = field(default_factory=dict)
    synced_names: _Names = field(default_factory=dict)

    def add(self, path: Path, entry: _Entry) -> None:
        self.names.setdefault(path.parent, {})[path.name] = entry

    def remove(self, path: Path) -> _Entry:
        return self.names.get(path.parent, {}).pop(path.name, None)

    def move(self, path: Path, to: Path) -> None:
        self.add(to, self.remove(path))

    def link(self, path: Path, to: Path) -> None:
        self.add(to, self.names[path.parent][path.name])

    def sync_names(self, directory: Path) -> None:
        self.synced_names[directory] = dict(self.names.get(directory, {}))

    def after_cut(self, root: Path, *, keeps_names: bool) -> dict[Path, bytes]:
        """The files that a cut now leaves below a directory that was there before.

        All that is not synced is lost; with `keeps_names`, only contents are.
        """
        names = self.names if keeps_names else self.synced_names
        found: dict[Path, bytes] = {}
        for name, entry in names.get(root, {}).items():
            if entry is None:
                found |= self.after_cut(root / name, keeps_names=keeps_names)
            else:
                found[root / name] = entry.synced
        return found


Step = Callable[[Tree], object]


class TreeRecording:
    """What this process does below a directory, in order; `clock` counts what else happens.

    Each step is kept with what the clock showed, so that it can be placed in another recording.
    """

    def __init__(self, root: Path, clock: Callable[[], int]) -> None:
        self.root = root
        self.steps: list[tuple[int, Step]] = []
        self._clock = clock
        self._files: dict[int, _File] = {}
        self._directories: dict[int, Path] = {}
        self._contents: dict[Path, _File] = {}

    def record(self, monkeypatch: pytest.MonkeyPatch) -> Self:
        """Start to record, until the patch is undone."""
        notes: dict[str, Callable[..., None]] = {
            "open": self._open,
            "write": self._write,
            "fsync": self._fsync,
            "close": self._close,
            "mkdir": self._mkdir,
            "rename": self._rename,
            "link": self._link,
            "unlink": self._unlink,
            "rmdir": self._unlink,
        }
        for name, note in notes.items():
            monkeypatch.setattr(os, name, _wrapped(getattr(os, name), note))
        return self

    def tree_at(self, moment: int) -> Tree:
        """The tree as it was when the clock showed this."""
        for file in self._contents.values():
            file.content.clear()
            file.synced = b""
        tree = Tree()
        for at, step in self.steps:
            if at <= moment:
                step(tree)
        return tree

    def _add(self, step: Step) -> None:
        self.steps.append((self._clock(), step))

    def _is_below(self, path: Any) -> bool:
        return isinstance(path, str | Path) and Path(path).is_relative_to(self.root)

    def _open(self, number: int, path: Any, flags: int, *_: Any, **__: Any) -> None:
        if not self._is_below(path):
            return
        place = Path(path)
        if flags & os.O_CREAT:
            file = self._files[number] = self._contents[place] = _File()
            self._add(lambda tree: tree.add(place, file))
        elif flags & os.O_DIRECTORY:
            self._directories[number] = place

    def _write(self, written: int, number: int, data: Any) -> None:
        if (file := self._files.get(number)) is not None:
            piece = bytes(data[:written])
            self._add(lambda tree: file.content.extend(piece))

    def _fsync(self, _: None, number: int) -> None:
        if (file := self._files.get(number)) is not None:
            self._add(lambda tree: setattr(file, "synced", bytes(file.content)))
        if (directory := self._directories.get(number)) is not None:
            self._add(lambda tree: tree.sync_names(directory))

    def _close(self, _: None, number: int) -> None:
        self._files.pop(number, None)
        self._directories.pop(number, None)

    def _mkdir(self, _: None, path: Any, *__: Any, **___: Any) -> None:
        if self._is_below(path):
            self._add(lambda tree: tree.add(Path(path), None))

    def _rename(self, _: None, path: Any, to: Any) -> None:
        if self._is_below(path):
            self._add(lambda tree: tree.move(Path(path), Path(to)))

    def _link(self, _: None, path: Any, to: Any, **__: Any) -> None:
        if self._is_below(path):
            self._add(lambda tree: tree.link(Path(path), Path(to)))

    def _unlink(self, _: None, path: Any, **__: Any) -> None:
        if self._is_below(path):
            self._add(lambda tree: tree.remove(Path(path)))


def _wrapped(real: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        if real.__name__ == "close":
            # Before: afterwards the number may be another file's.
            note(None, *arguments)
            return real(*arguments)
        answer = real(*arguments, **options)
        note(answer, *arguments, **options)
        return answer

    return call
