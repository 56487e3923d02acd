"""Users of sandboxes: a uid for each box that runs, which owns what its command writes."""

from __future__ import annotations

from pathlib import Path

from holdfast.errors import RuntimeTrouble

FIRST_UID = 250_000
"""Below are users and their subordinate ranges, as distributions give them out."""
UID_COUNT = 10_000


class UidPool:
    """Uids of one worker's boxes; one is given again as late as possible."""

    def __init__(self, first: int = FIRST_UID, count: int = UID_COUNT) -> None:
        """Give out `count` uids."""
        self._first = first
        self._count = count
        self._next = 0
        self._taken: set[int] = set()

    def take(self) -> int:
        """Take a uid that no box has."""
        for _ in range(self._count):
            uid = self._first + self._next
            self._next = (self._next + 1) % self._count
            if uid not in self._taken:
                self._taken.add(uid)
                return uid
        raise RuntimeTrouble(f"all {self._count} uids of sandboxes are in use")

    def give_back(self, uid: int) -> None:
        """Return a uid; nothing of its box may run."""
        self._taken.discard(uid)


def check_reachable(path: Path) -> None:
    """Raise `RuntimeTrouble` unless every user can reach a path, as a box's own must."""
    for parent in path.resolve(strict=True).parents:
        if not parent.stat().st_mode & 0o001:
            raise RuntimeTrouble(
                f"the user of a sandbox cannot reach {path}: allow it with chmod o+x {parent}"
            )
