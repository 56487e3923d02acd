"""The worker: claims jobs, runs them, and writes what came of them, as one pipeline.

Claims, handlers and commits overlap: while a commit is under way handlers run and the next claim
is asked for. A keeper in a thread of its own renews the leases. The worker keeps nothing that the
store does not know: killed at any moment, its jobs are found by any reconciler.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Self, TypeAlias

from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.flow.families import tend
from holdfast.ids import mint_worker
from holdfast.lifecycle.record import Actor
from holdfast.lifecycle.states import Role
from holdfast.ports.host import Host, HostPlan
from holdfast.ports.models import Announcement
from holdfast.ports.store import Store
from holdfast.telemetry import Meters
from holdfast.telemetry.liveness import measure_lag
from holdfast.telemetry.redaction import Redact, redacting
from holdfast.worker.claimer import FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, POLL_SECONDS
from holdfast.worker.failures import Hook
from holdfast.worker.fork_guard import allow_fork, forbid_fork
from holdfast.worker.owned_job import OwnedJobs
from holdfast.worker.pipeline import Pipeline
from holdfast.worker.runner_table import Runners, RunnerTable
from holdfast.worker.shutdown import LET_GO_SECONDS, Shutdown
from holdfast.worker.stop_request import StopRequest

__all__ = ["GRACE_SECONDS", "LET_GO_SECONDS", "POLL_SECONDS", "Worker"]

log = logging.getLogger(__name__)

GRACE_SECONDS = 30.0

Beside: TypeAlias = Callable[[Store, str], Coroutine[Any, Any, None]]
"""Runs a loop on an open store, in the name of a worker, until cancelled."""


class Worker:
    """Runs jobs of some queues until it is stopped. `async with`, or `run`."""

    def __init__(
        self,
        store: Store,
        runners: Runners,
        *,
        keeper_store: Store,
        queues: Sequence[str] = ("default",),
        concurrency: int = 20,
        capabilities: frozenset[str] = frozenset(),
        grace_seconds: float = GRACE_SECONDS,
        poll_seconds: float = POLL_SECONDS,
        tick_seconds: float = 1.0,
        beside: Sequence[Beside] = (),
        meters: Meters | None = None,
        exits: bool = False,
        on_failure: Sequence[Hook] = (),
        redact: Redact | None = None,
        host: HostPlan | None = None,
        leaves_boxes: bool = True,
    ) -> None:
        """Keep the settings; `async with`, or `run`, starts the worker.

        The two stores are opened and closed here: one for the loop, one for the keeper's thread;
        the runners are closed here, too. `beside` are loops that run beside its own, on its store
        and under its name. `exits`: the process ends with this worker, and with it
        what cannot be killed otherwise. `on_failure` are called for each failed or lost attempt,
        in a thread of their own; `redact` removes secrets from what is stored or logged of errors.
        With a `host` it also runs commands, and at its end leaves those running that can continue.
        """
        self.name = mint_worker(None if host is None else host.name)
        self.meters = meters or Meters()
        self.died: BaseException | None = None
        """What a part of the worker died of."""
        self._store = store
        self._keeper_store = keeper_store
        self._runners = RunnerTable(runners)
        self._queues = tuple(queues)
        self._concurrency = concurrency
        self._capabilities = capabilities
        self._poll = poll_seconds
        self._tick = tick_seconds
        self._beside = tuple(beside)
        self._exits = exits
        self._on_failure = tuple(on_failure)
        self._redact = redact
        self._host_plan = host
        self._host: Host | None = None
        self._leaves_boxes = leaves_boxes
        self._owned = OwnedJobs()
        self._stop_request = StopRequest(grace_seconds, self._owned.changed)
        self._ending: asyncio.Task[None] | None = None

    @property
    def failed(self) -> BaseException | None:
        """What ended the worker, if anything but `stop` did."""
        return self._stop_request.failed

    @property
    def left_running(self) -> bool:
        """Whether, after its end, something still runs: a handler, or a thread in the store."""
        return self._shutdown.stuck or bool(self._owned.running)

    async def __aenter__(self) -> Self:
        """Start; a database that does not answer yet is waited for."""
        await self._open()
        with redacting(self._redact):
            self._start()
        forbid_fork(self)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Stop, finish or release what it owns, and let go; raises what a part died of."""
        self.stop()
        self._ending = self._shutting_down()
        await asyncio.shield(self._ending)
        if kind is None and self.died is not None:
            raise self.died

    async def run(self) -> None:
        """Work until stopped; raises what ended it otherwise."""
        async with self:
            await self.stopped()
        if self.failed is not None:
            raise self.failed

    def stop(self) -> None:
        """Claim no more; what runs is finished or released within the grace."""
        self._stop_request.stop()

    def hurry(self) -> None:
        """End the grace of a worker that is stopping."""
        self._stop_request.hurry()

    async def stopped(self) -> None:
        """Wait until it was asked to stop, or a part of it died."""
        await self._stop_request.requested.wait()

    async def _open(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while True:
            try:
                await self._store.open()
                # Before it claims anything: a client that sees it work can submit by name.
                await self._store.publish_terms(self._runners.published())
                if self._host_plan is not None:
                    self._host = await self._host_plan.open(self._store)
                return
            except StoreUnavailable as error:
                log.warning("the store does not answer yet, will try again: %s", error)
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE_SECONDS)

    def _start(self) -> None:
        """Make all parts and start them; what they start in turn redacts as they do."""
        pipeline = Pipeline(
            self._make_announcement(),
            store=self._store,
            keeper_store=self._keeper_store,
            runners=self._runners,
            owned=self._owned,
            stop_request=self._stop_request,
            meters=self.meters,
            host=self._host,
            on_failure=self._on_failure,
            poll_seconds=self._poll,
            tick_seconds=self._tick,
        )
        pipeline.keeper.start()
        pulse = self.meters.pulse("loop", limit_seconds=30)
        loops = [
            *pipeline.loops(),
            measure_lag(self.meters.lagged, pulse, every_seconds=0.5),
            self._tend_families(),
        ]
        loops += [run(self._store, self.name) for run in self._beside]
        self._shutdown = Shutdown(
            pipeline=pipeline,
            request=self._stop_request,
            committing=self._guarded(pipeline.committer.run()),
            claiming=self._guarded(pipeline.claim_and_start()),
            loops=[self._guarded(loop) for loop in loops],
            exits=self._exits,
            leaves=self._leaves_boxes,
        )

    def _make_announcement(self) -> Announcement:
        return Announcement(
            name=self.name,
            queues=self._queues,
            capabilities=self._capabilities,
            tasks=self._runners.offers(),
            host=socket.gethostname(),
            pid=os.getpid(),
            concurrency=self._concurrency,
        )

    async def _tend_families(self) -> None:
        """Look at families soon after something of them ended or started to wait: once for many."""
        actor = Actor(Role.RECONCILER, self.name)
        while not self._stop_request.is_set():
            await self._owned.family_changed.wait()
            self._owned.family_changed.clear()
            try:
                await tend(self._store, actor)
            except HoldfastError as error:
                log.warning("families were not handled; a sweep will retry: %s", error)

    def _guarded(self, loop: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(loop)
        task.add_done_callback(self._stop_if_loop_died)
        return task

    def _stop_if_loop_died(self, task: asyncio.Task[None]) -> None:
        """Stop the worker if one of its loops died: it must not continue without it."""
        error = None if task.cancelled() else task.exception()
        if not isinstance(error, Exception):
            return
        log.critical("a part of the worker died, it stops", exc_info=error)
        self.died = self.died or error
        self._stop_request.failed = self._stop_request.failed or error
        self.stop()
        # At once: the keeper would renew leases of jobs whose ends are not written any more.
        self._ending = self._shutting_down()

    def _shutting_down(self) -> asyncio.Task[None]:
        """Return the shutdown, started once, whatever asks for it first."""
        return self._ending or asyncio.create_task(self._shut_down())

    async def _shut_down(self) -> None:
        try:
            await self._shutdown.run()
        finally:
            allow_fork(self)
