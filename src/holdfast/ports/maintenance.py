"""The port to the care of a ledger: verify, repair, retention, quarantine, epoch, seals."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from holdfast.lifecycle.record import Job, JobId
from holdfast.ports.models import (
    Aged,
    KeyRow,
    LedgerEntry,
    Purgeable,
    PurgedJob,
    PurgeEntry,
    Quarantine,
)


class Maintenance(Protocol):
    """What janitors, verify, rebuild and operators ask of a store."""

    async def quarantine(self, ids: Sequence[JobId], *, reason: str) -> None:
        """Keep jobs out of claims and sweeps. Their owners may still finish them.

        The ledger is not touched: rows, events and revisions stay as they are. Repeating keeps the
        first reason; an unknown id changes nothing.
        """

    async def quarantined(self, *, after: JobId | None = None, limit: int = 100) -> Quarantine:
        """List jobs that are set aside, by id."""

    async def release_quarantined(self, ids: Sequence[JobId]) -> int:
        """Let jobs be claimed and swept again; returns how many were set aside.

        Whether they can be read again is the caller's to check: a damaged one is set aside again
        by the next claim or sweep that meets it.
        """

    async def aged(
        self, *, ended_before: int, after: JobId | None = None, look_at: int = 1000
    ) -> Aged:
        """List those of the next `look_at` jobs by id that ended before a time, not yet cleaned.

        Not those to which a job is linked that has not ended: it may read what they were asked for
        and what they did.
        """

    async def continued(self, ids: Sequence[JobId]) -> set[JobId]:
        """Return those of these jobs whose records another job may still read.

        That is a retry, redrive or compensation of the job, or one made from such a job, which has
        not ended or whose dead letter is open. Children do not count.
        """

    async def erase_bodies(self, ids: Sequence[JobId]) -> int:
        """Erase the bodies of cleaned jobs' events, and their logs; digests stay.

        Returns the number of bodies that were erased.
        """

    async def purgeable(
        self, *, ended_before: int, after: JobId | None = None, look_at: int = 1000
    ) -> Purgeable:
        """List those of the next `look_at` jobs by id that ended before a time."""

    async def purge(
        self, ids: Sequence[JobId], *, actor: str, reason: str | None = None
    ) -> list[JobId]:
        """Remove cleaned jobs whole, in one transaction; returns those that were removed.

        Not removed is what is not cleaned, is set aside, or has a job linked to it; a store may
        keep the job of its newest event. Rows, events, heartbeats and logs go, and the summaries
        no longer count them. The keys `job_id` and `request_id` stay: a submit that gives one
        again is refused with `job_purged`. An entry in the ledger of purges names how many and who;
        each id is kept with its tenant.
        """

    async def purged(self, ids: Sequence[JobId]) -> list[PurgedJob | None]:
        """Read what is left of jobs that were purged; None for each that was not."""

    async def purges(self, *, before: int | None = None, limit: int = 100) -> list[PurgeEntry]:
        """Read the ledger of purges, newest first, before an entry's number."""

    async def drop_beats(self, *, before: int, limit: int = 10_000) -> int:
        """Drop heartbeats older than a time, except those a present lease rests on."""

    async def fold_counts(self) -> None:
        """Fold the summaries' deltas; any number of sweeps may do so at once."""

    async def forget_unused(self) -> int:
        """Forget sets of needs that no job has any more; return how many.

        Not one that was named within the last hour: its job may be on its way.
        """

    async def give_back_space(self) -> int:
        """Return some free space to the file system, bounded; returns the number of bytes.

        0 where there is none, or where the database does so by itself or not at all.
        """

    async def bump_epoch(self) -> int:
        """Raise the epoch after a restore: claims of an older one are fenced."""

    async def set_sealing(self, on: bool) -> None:
        """Turn the hash chain over new events on or off."""

    def ledger(
        self, *, after: JobId | None = None, batch: int = 500
    ) -> AsyncIterator[list[LedgerEntry]]:
        """Read every job and all its events by id, in batches of one short snapshot each.

        Also ids with nothing but events, or keys: that is damage.
        """

    async def size(self) -> int:
        """Estimate how many jobs there are, for a progress bar."""

    async def dictionary_problems(self) -> list[str]:
        """Describe the policies and needs that do not match their key."""

    async def side_problems(self) -> list[str]:
        """Describe what is wrong beside the ledger: queues, marks, tokens, webhooks, cursors."""

    async def rebuild(
        self, jobs: Sequence[Job], *, keys: Sequence[tuple[JobId, KeyRow]]
    ) -> list[JobId]:
        """Replace the projection of these jobs: rows, keys, holds, what sweeps find leases by.

        Compare-and-set: a job whose last event is not the one of this revision has moved on since
        it was read, and is left as it is. Returns those.
        """

    async def recount(self) -> None:
        """Count the summaries again. Offline maintenance, like `rebuild`."""

    async def free_stray_keys(self) -> int:
        """Free the keys of ids of which nothing else is left, and return how many.

        Pending signals and holds of such ids are removed, too. Offline maintenance, like `rebuild`.
        """
