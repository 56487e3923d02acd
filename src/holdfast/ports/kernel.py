"""The port to an external kernel: a service that decides on a job where a rule asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from holdfast.admission.book import Book
from holdfast.admission.verdicts import Decision
from holdfast.lifecycle.record import JobId

STATE_NOTE = "kernel"
"""The note of the store under which `KernelTrouble` is, as JSON; empty while the kernel answers."""


class KernelTrouble(Struct, frozen=True, kw_only=True):
    """Since when a kernel does not answer, and how often it was asked in vain."""

    url: str
    since: int
    """By the store's clock."""
    tries: int
    message: str


def read_trouble(note: str | None) -> KernelTrouble | None:
    """Return what is noted of a kernel; None if it answers."""
    return msgspec.json.decode(note, type=KernelTrouble) if note else None


def read_trouble_of(url: str | None, note: str | None) -> KernelTrouble | None:
    """Return what is noted of the kernel at a URL; a note of another is of no interest any more."""
    trouble = read_trouble(note)
    return None if trouble is None or trouble.url != url else trouble


class ExternalKernel(Protocol):
    """Asks a kernel. It keeps no decision: what it returns is recorded with the job."""

    async def ask(self, book: Book, variables: Mapping[str, Any], job: JobId) -> Decision:
        """Return what the kernel of a book decides on a job.

        KernelUnavailable if it did not answer in time, or not with a decision; also without asking
        it, for a while after it failed several times in a row.
        """
