"""A resource outside the store that checks tokens, so that a fenced attempt leaves no effect.

One file per job, appended under a lock of its own: it knows nothing of the store, survives the
death of every writer, and a writer that is stopped holds up nobody but those of its own job.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from holdfast.tasks.context import FencingToken


class Effect(Struct, frozen=True, kw_only=True):
    """One write that somebody tried, and whether the resource took it."""

    job: str
    epoch: int
    attempt: int
    what: str
    accepted: bool
    pid: int

    @property
    def rank(self) -> tuple[int, int]:
        """What the resource compares: a greater pair fences every smaller one."""
        return self.epoch, self.attempt


class Resource:
    """Keeps the greatest token it saw of each job, and refuses what comes with a smaller one."""

    def __init__(self, directory: str | Path) -> None:
        """Keep the effects in a directory that is there."""
        self.directory = Path(directory)

    def write(self, token: FencingToken, what: str) -> bool:
        """Have an effect, if the token is not older than one that was here; tells whether."""
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        descriptor = os.open(self.directory / token.job_id, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            accepted = _is_current(token, _read(descriptor))
            effect = Effect(
                job=token.job_id,
                epoch=token.epoch,
                attempt=token.attempt,
                what=what,
                accepted=accepted,
                pid=os.getpid(),
            )
            # In one call: a writer that is killed leaves the whole line or nothing.
            os.write(descriptor, msgspec.json.encode(effect) + b"\n")
        finally:
            os.close(descriptor)
        return accepted

    def of(self, job_id: str) -> list[Effect]:
        """Read the effects of one job, in the order in which they came."""
        try:
            text = (self.directory / job_id).read_bytes()
        except FileNotFoundError:
            return []
        return list(_effects(text))

    def all(self) -> dict[str, list[Effect]]:
        """Read the effects of every job."""
        return {file.name: self.of(file.name) for file in self.directory.iterdir()}

    def saw(self, job_id: str, what: str, *, attempt: int | None = None) -> bool:
        """Whether an effect was tried, by any attempt or by this one."""
        return any(
            effect.what == what and attempt in (None, effect.attempt) for effect in self.of(job_id)
        )


def _is_current(token: FencingToken, text: bytes) -> bool:
    ranks = [effect.rank for effect in _effects(text)]
    return (token.epoch, token.attempt) >= max(ranks, default=(0, 0))


def _read(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)


def _effects(text: bytes) -> Iterator[Effect]:
    for line in text.splitlines():
        yield msgspec.json.decode(line, type=Effect)
