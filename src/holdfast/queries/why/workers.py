"""Reasons that lie with the workers: none serves the job, or those that do are busy."""

from __future__ import annotations

from typing import NamedTuple

from holdfast.admission.topics import is_topic
from holdfast.lifecycle.record import Job
from holdfast.lifecycle.routes import is_offered, is_runner_need
from holdfast.lifecycle.states import BOXED, CLAIMABLE, OWNED, Kind
from holdfast.ports.models import WorkerStatus
from holdfast.ports.store import Store
from holdfast.queries.why import reasons as r
from holdfast.queries.why.facts import SeenWorker

SHOWN = 5
"""How many workers a reason names."""


def explain_unserved(job: Job, workers: list[WorkerStatus], now: int) -> list[r.Reason]:
    """Return why no live worker would claim and run a job, if that is so."""
    serving = [one for one in workers if job.queue in one.queues]
    live = [one for one in serving if one.is_live(now)]
    last = () if live else tuple(show_worker(one, now) for one in serving[:SHOWN])
    missing = _find_missing_runner(job, live) if job.kind in BOXED else ()
    is_agent = job.kind is Kind.AGENT
    if missing:
        return [
            r.NoCommandWorker(
                queue=job.queue,
                agent=is_agent,
                missing=missing,
                workers=len(live),
                last_seen=last,
            )
        ]
    if not live:
        if is_topic(job.task):
            return [_explain_unserved_topic(job, live, last)]
        return [r.NoWorker(queue=job.queue, last_seen=last)]
    capable = [one for one in live if job.needs <= one.capabilities]
    if not capable:
        return [_explain_incapable(job, live)]
    if able := [one for one in capable if _has_task(one, job)]:
        return _explain_no_room(job, able)
    if is_topic(job.task):
        return [_explain_unserved_topic(job, live, last)]
    versions = {
        version
        for one in capable
        for task, _, version in (offered.rpartition("@") for offered in one.tasks)
        if task == job.task
    }
    return [
        r.TaskUnknown(
            queue=job.queue,
            task=job.task,
            version=job.task_version,
            versions=tuple(sorted(versions))[:SHOWN],
            workers=tuple(one.name for one in capable[:SHOWN]),
        )
    ]


def _explain_unserved_topic(
    job: Job, live: list[WorkerStatus], last: tuple[SeenWorker, ...]
) -> r.NoTopicWorker:
    return r.NoTopicWorker(
        topic=job.task,
        queue=job.queue,
        bus=job.kind is Kind.BUS,
        workers=len(live),
        last_seen=last,
    )


def _find_missing_runner(job: Job, live: list[WorkerStatus]) -> tuple[str, ...]:
    """Return what the live workers lack to run a command, if that is what keeps the job."""
    needs = {need for need in job.needs if is_runner_need(need)}
    closest = min(live, key=lambda one: len(needs - one.capabilities), default=None)
    return tuple(sorted(needs if closest is None else needs - closest.capabilities))


def _explain_no_room(job: Job, able: list[WorkerStatus]) -> list[r.Reason]:
    """Return that no worker has the room that a job asks for, if that is so.

    A worker that announces no room claims whatever it can run.
    """
    hosts = [_Host.of(one) for one in able]
    asked = job.cpus or 0, job.memory_mb or 0
    if any(one is None or one.free.fits(*asked) for one in hosts):
        return []
    known = [one for one in hosts if one is not None]
    large = [one for one in known if one.total.fits(*asked)]
    host = max(large, key=lambda one: one.free) if large else max(known, key=lambda one: one.total)
    room = host.free if large else host.total
    return [
        r.NoRoom(
            cpus=job.cpus if room.cpus < asked[0] else None,
            memory_mb=job.memory_mb if room.memory_mb < asked[1] else None,
            host=host.name,
            host_cpus=room.cpus,
            host_memory_mb=room.memory_mb,
            ever=bool(large),
        )
    ]


class _Room(NamedTuple):
    """CPUs and memory of a host."""

    cpus: int
    memory_mb: int

    def fits(self, cpus: int, memory_mb: int) -> bool:
        return cpus <= self.cpus and memory_mb <= self.memory_mb


class _Host(NamedTuple):
    """The host of a worker that runs commands, as it was announced."""

    name: str
    total: _Room
    free: _Room

    @classmethod
    def of(cls, worker: WorkerStatus) -> _Host | None:
        """Return the host of a worker; None if it announced no room."""
        if worker.cpus is None or worker.memory_mb is None:
            return None
        total = _Room(worker.cpus, worker.memory_mb)
        free = worker.free_cpus, worker.free_memory_mb
        if free[0] is None or free[1] is None:
            return cls(worker.host, total, total)
        return cls(worker.host, total, _Room(free[0], free[1]))


def _has_task(worker: WorkerStatus, job: Job) -> bool:
    """Return whether a worker would claim jobs of this task: one that names no tasks claims any."""
    if job.kind is not Kind.FUNCTION or not worker.tasks:
        return True
    return is_offered(worker.tasks, job.task, job.task_version)


def _explain_incapable(job: Job, live: list[WorkerStatus]) -> r.NoCapableWorker:
    closest = min(live, key=lambda one: len(job.needs - one.capabilities))
    return r.NoCapableWorker(
        queue=job.queue,
        needs=tuple(sorted(job.needs)),
        missing=tuple(sorted(job.needs - closest.capabilities)),
        closest=closest.name,
        workers=len(live),
    )


async def explain_ready(
    store: Store, job: Job, workers: list[WorkerStatus], now: int, tenant: str | None
) -> r.ReadyToClaim:
    """Return how much work is before a job that nothing else keeps, from the summaries."""
    able = [
        one
        for one in workers
        if one.is_live(now)
        and job.queue in one.queues
        and job.needs <= one.capabilities
        and _has_task(one, job)
    ]
    counts = [one for one in await store.counts(tenant) if one.queue == job.queue]
    return r.ReadyToClaim(
        since=job.run_at,
        workers=tuple(one.name for one in able),
        slots=sum(one.concurrency for one in able),
        under_way=sum(one.jobs for one in counts if one.state in OWNED),
        others=max(0, sum(one.jobs for one in counts if one.state in CLAIMABLE) - 1),
        cpus=job.cpus,
        memory_mb=job.memory_mb,
        of_tenant=tenant is not None,
    )


def show_worker(worker: WorkerStatus, now: int) -> SeenWorker:
    return SeenWorker(
        name=worker.name,
        host=worker.host,
        pid=worker.pid,
        seen_at=worker.seen_at,
        stopped_at=worker.stopped_at,
        live=worker.is_live(now),
    )
