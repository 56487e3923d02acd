"""`holdfast bridge`: serve a bus."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer
from typer import Option

from holdfast.admission.topics import NO_TOPICS
from holdfast.buses.rules import BusRules, JetStreamMode
from holdfast.cli.options import Options, StoreOptions
from holdfast.cli.output import plain, print_note
from holdfast.cli.runtime import handle_signals, open_awaited_store
from holdfast.cli.settings import LogOptions, MetricsOptions, setting
from holdfast.config import ConfigFile, mask_secrets
from holdfast.errors import BadConfig
from holdfast.services.reconciler import Reconciler
from holdfast.services.upkeep import process_name
from holdfast.telemetry import Meters
from holdfast.wiring import BridgePlan, make_bridge

NATS_URL = "nats://127.0.0.1:4222"


class BusOptions(Options):
    """Which bus is served, and where it is."""

    ctx: typer.Context
    nats: Annotated[
        str, setting("--nats", "The NATS server; several of a cluster are separated by commas.")
    ] = NATS_URL
    bus: Annotated[
        str, setting("--bus", "The name of the bus, as topics of the settings file have it.")
    ] = "main"
    tenant: Annotated[str, Option("--tenant", help="The tenant whose jobs the bus carries.")] = (
        "default"
    )
    jetstream: Annotated[
        JetStreamMode,
        setting(
            "--jetstream",
            "Whether submits and results wait in a stream while no bridge runs: auto, on, off.",
        ),
    ] = JetStreamMode.AUTO

    def plan(self) -> BridgePlan:
        """Read what the settings file has of this bus."""
        file = self.ctx.find_root().obj
        topics = file.topics if isinstance(file, ConfigFile) else NO_TOPICS
        rules = file.buses.get(self.bus) if isinstance(file, ConfigFile) else None
        if not any(route.bus == self.bus for route in topics.routes.values()):
            raise BadConfig(
                f"no topic leads to the bus {self.bus!r}; add to the settings file: "
                f'[topics."job.chat.*"] with bus = "{self.bus}"'
            )
        return BridgePlan(
            url=self.nats,
            name=self.bus,
            topics=topics,
            tenant=self.tenant,
            jetstream=self.jetstream,
            rules=rules or BusRules(),
        )


def bridge(
    command: StoreOptions,
    *,
    bus: BusOptions,
    reconcile: Annotated[
        bool, setting("--reconcile/--no-reconcile", "Also sweep for lost leases and timers.")
    ] = True,
    metrics: MetricsOptions,
    logs: LogOptions,
) -> None:
    """Carry jobs to workers on a CAP bus (NATS), and bring back what they report.

    The table of topics in the settings file has those that lead to the bus. Any number of
    bridges may serve one bus. SIGTERM stops it; the jobs that are out stay with the bus.
    """
    plan = bus.plan()
    logs.configure()

    async def work() -> None:
        meters = Meters()
        async with open_awaited_store(command.address) as store:
            with metrics.served(meters):
                made = make_bridge(store, plan, meters=meters)
                sweeps = Reconciler(store, process_name(), meters=meters) if reconcile else None

                def stop() -> None:
                    made.stop()
                    if sweeps is not None:
                        sweeps.stop()

                handle_signals(stop)
                async with asyncio.TaskGroup() as group:
                    group.create_task(made.run())
                    if sweeps is not None:
                        group.create_task(sweeps.run())

    place = plain(mask_secrets("url", command.address))
    where = plain(mask_secrets("url", plan.url))
    print_note(f"bridging {place} to the bus {plain(plan.name)} at {where}; stop with Ctrl-C")
    asyncio.run(work())
