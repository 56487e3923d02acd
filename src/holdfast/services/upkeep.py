"""The loops that keep a store in order, wherever they run: alone, or beside the API."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct

from holdfast.flow.blobs_on_demand import BlobsPlan
from holdfast.flow.clean import CleanSweep, RetentionTerms
from holdfast.flow.purge import Purged, PurgeTerms
from holdfast.flow.recover import Swept
from holdfast.flow.sweep_blobs import BlobSweep
from holdfast.flow.upload import UploadSweep
from holdfast.lifecycle.record import Actor, JobId
from holdfast.lifecycle.states import Role
from holdfast.ports.store import Store
from holdfast.services.external_kernel import HttpKernel
from holdfast.services.janitor import Janitor
from holdfast.services.policy_watch import PolicyWatch
from holdfast.services.reconciler import Reconciler
from holdfast.services.webhook_delivery import WebhookDelivery
from holdfast.telemetry import Meters
from holdfast.webhooks.egress import Outside

UpkeepLoop: TypeAlias = Reconciler | Janitor | WebhookDelivery | PolicyWatch
UpkeepReport: TypeAlias = Swept | CleanSweep | Purged | BlobSweep | UploadSweep
OnReport: TypeAlias = Callable[[UpkeepReport], None]


class Upkeep(Struct, frozen=True, kw_only=True):
    """What is swept, cleaned and delivered, and how often."""

    tick_seconds: float
    terms: RetentionTerms
    purge_terms: PurgeTerms = PurgeTerms()
    clean: bool = True
    blobs: BlobsPlan | None = None
    """Where logs and artifacts are; None: commands and agents are not cleaned."""
    policy: Path | None = None
    """The file of rules that is watched and applied; None: none is."""
    outside: Outside | None = None
    """Where webhooks may lead; None: this process delivers to none."""

    def make_loops(
        self,
        store: Store,
        make_store: Callable[[], Store],
        *,
        on_report: OnReport | None = None,
        meters: Meters | None = None,
    ) -> list[UpkeepLoop]:
        """Make the loops of one process on one store; delivery opens stores of its own."""
        made: list[UpkeepLoop] = [self._make_reconciler(store, on_report, meters)]
        if self.policy is not None:
            made.append(self.make_watch(store, self.policy, meters))
        if self.clean:
            made.append(self._make_janitor(store, on_report, meters))
        if self.outside is not None:
            name = process_name()
            made.append(
                WebhookDelivery(store, make_store, name, outside=self.outside, meters=meters)
            )
        return made

    async def run_once(self, store: Store, on_report: OnReport) -> dict[str, str]:
        """Do all that is due, once; return the jobs that could not be judged, and why."""
        if self.policy is not None:
            await self.make_watch(store, self.policy).apply_now()
        reconciler = self._make_reconciler(store, on_report, None)
        while (report := await reconciler.sweep()).written:
            pass
        failed = dict(report.failed)
        if not self.clean:
            return _by_name(failed)
        janitor = self._make_janitor(store, on_report, None)
        failed |= (await janitor.clean_all()).failed
        failed |= (await janitor.purge_all()).failed
        uploads = (await janitor.expire_all_uploads()).failed
        return {**_by_name(failed), **uploads, **(await janitor.sweep_all_blobs()).failed}

    def make_watch(self, store: Store, path: Path, meters: Meters | None = None) -> PolicyWatch:
        """Make the loop that applies a file of rules."""
        return PolicyWatch(store, path, Actor(Role.CONTROL, process_name()), meters=meters)

    def _make_reconciler(
        self, store: Store, on_report: OnReport | None, meters: Meters | None
    ) -> Reconciler:
        return Reconciler(
            store,
            process_name(),
            tick_seconds=self.tick_seconds,
            on_sweep=on_report,
            meters=meters,
            kernel=HttpKernel(),
        )

    def _make_janitor(
        self, store: Store, on_report: OnReport | None, meters: Meters | None
    ) -> Janitor:
        return Janitor(
            store,
            process_name(),
            self.terms,
            purge_terms=self.purge_terms,
            blobs=self.blobs,
            on_look=on_report,
            on_purge=on_report,
            on_sweep=on_report,
            on_expire=on_report,
            meters=meters,
        )


def _by_name(failed: Mapping[JobId, str]) -> dict[str, str]:
    return {str(id_): why for id_, why in failed.items()}


def process_name() -> str:
    """Return the name of this process, as the actor of what it does to keep a store in order."""
    return f"{socket.gethostname()}-{os.getpid()}"


async def run_loops(loops: Iterable[UpkeepLoop]) -> None:
    """Run loops until all of them are stopped, or this is cancelled."""
    async with asyncio.TaskGroup() as group:
        for one in loops:
            group.create_task(one.run())


def stop_loops(loops: Iterable[UpkeepLoop]) -> None:
    """Stop loops, each after the pass that is under way."""
    for one in loops:
        one.stop()
