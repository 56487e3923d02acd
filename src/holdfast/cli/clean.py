"""The command `clean`: erase what retention no longer keeps, now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, NamedTuple

import typer
from msgspec import Struct
from typer import Option

from holdfast.cli.options import StoreCommand
from holdfast.cli.output import plain, progress_bar
from holdfast.cli.runtime import FOUND_PROBLEMS
from holdfast.cli.settings import CommandFileOptions, KeepOptions
from holdfast.errors import HoldfastError
from holdfast.flow.blobs_on_demand import BlobsOnDemand
from holdfast.flow.clean import CleanSweep, RetentionTerms
from holdfast.flow.clean import clean as clean_jobs
from holdfast.flow.sweep_blobs import BlobSweep, list_all, sweep_blobs
from holdfast.flow.upload import expire_all_uploads, measure_due_uploads
from holdfast.lifecycle.record import Actor
from holdfast.lifecycle.states import Role
from holdfast.ports.blobs import Blobs
from holdfast.ports.store import Store
from holdfast.queries.why.phrases import count
from holdfast.services.upkeep import process_name

LOOK_AT = 1000


class Erased(NamedTuple):
    """What was erased, or would be."""

    cleaned: CleanSweep
    swept: BlobSweep
    upload_bytes: int
    failed_uploads: dict[str, str]

    @property
    def bytes_by_kind(self) -> dict[str, int]:
        """The bytes, by what they are of."""
        return {
            "log": self.cleaned.outputs.logs,
            "artifact": self.cleaned.outputs.artifacts + self.swept.artifact_bytes,
            "upload": self.upload_bytes,
            "orphan": self.swept.orphan_bytes,
        }

    @property
    def all_failed(self) -> dict[str, str]:
        """What could not be erased, and why, by the id of a job or an upload."""
        jobs = {str(id_): why for id_, why in self.cleaned.failed.items()}
        return jobs | self.failed_uploads | self.swept.failed


class WholePass(Struct, kw_only=True):
    """One pass over all jobs, then over all blobs."""

    store: Store
    terms: RetentionTerms
    blobs: BlobsOnDemand
    dry_run: bool

    async def clean(self, on_look: Callable[[int], None]) -> CleanSweep:
        """Clean all jobs whose term is over."""
        actor, total, looked = Actor(Role.JANITOR, process_name()), CleanSweep(), 0
        while True:
            report = await clean_jobs(
                self.store,
                actor,
                self.terms,
                blobs=self.blobs.get,
                after=total.next,
                look_at=LOOK_AT,
                dry_run=self.dry_run,
            )
            total.add(report)
            total.next, looked = report.next, looked + LOOK_AT
            on_look(looked)
            if report.next is None:
                return total

    async def sweep(self, blobs: Blobs, on_look: Callable[[int], None]) -> BlobSweep:
        """Delete all blobs that nothing in the store names."""
        total = BlobSweep()
        listing = list_all(blobs)
        while not total.ended:
            report = await sweep_blobs(
                self.store, blobs, self.terms, listing, look_at=LOOK_AT, dry_run=self.dry_run
            )
            total.add(report)
            total.ended = report.ended
            on_look(total.looked)
        return total

    async def expire(self, blobs: Blobs) -> tuple[int, dict[str, str]]:
        """Remove uploads whose time has come; return their bytes, and what could not be removed."""
        size = await measure_due_uploads(self.store)
        if self.dry_run:
            return size, {}
        actor = Actor(Role.JANITOR, process_name())
        return size, (await expire_all_uploads(self.store, blobs, actor)).failed


def clean(
    command: StoreCommand,
    *,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Only count what would be erased now, in jobs and bytes.")
    ] = False,
    keep: KeepOptions,
    files: CommandFileOptions,
) -> None:
    """Erase what ended jobs left, once their term is over, and blobs that no job has any more.

    Their records stay: `holdfast purge` removes those. Runs beside live work, and does what `up`
    and `reconcile` do all the time. Exits with 1 if something could not be erased.
    """
    terms, plan = keep.terms(), files.plan_upkeep(command)

    async def work(store: Store) -> Erased:
        whole = WholePass(
            store=store, terms=terms, blobs=BlobsOnDemand(store, plan), dry_run=dry_run
        )
        with progress_bar("cleaning", await store.size(), quiet=command.as_json) as progress:
            cleaned = await whole.clean(progress)
        try:
            blobs = await whole.blobs.find()
        except (HoldfastError, OSError) as error:
            cleaned.unreachable, blobs = str(error), None
        if blobs is None:
            return Erased(cleaned, BlobSweep(), 0, {})
        size, failed = await whole.expire(blobs)
        with progress_bar("sweeping", None, quiet=command.as_json) as progress:
            return Erased(cleaned, await whole.sweep(blobs, progress), size, failed)

    done = command.on_store(work)
    failed, cleaned = done.all_failed, done.cleaned
    notes = [f"{id_}: {plain(why)}" for id_, why in failed.items()]
    if cleaned.unreachable is not None:
        waiting = f"{cleaned.waiting:,} ended commands and agents are not cleaned"
        notes.append(f"{waiting}: {plain(cleaned.unreachable)}")
    answer = {
        "dry_run": dry_run,
        "jobs": cleaned.cleaned,
        **{f"{kind}_bytes": size for kind, size in done.bytes_by_kind.items()},
        "waiting": cleaned.waiting,
        "unreachable": cleaned.unreachable,
        "failed": failed,
    }
    verb = "would clean" if dry_run else "cleaned"
    sizes = [f"{kind}s: {size / 1e6:,.1f} MB" for kind, size in done.bytes_by_kind.items()]
    command.show(answer, f"{verb} {count(cleaned.cleaned, 'job')}", *sizes, notes=notes)
    if failed or cleaned.waiting:
        raise typer.Exit(FOUND_PROBLEMS)
