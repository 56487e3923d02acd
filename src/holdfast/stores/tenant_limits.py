"""How many queue names and sets of needs the jobs of one tenant may have.

Each name costs every tenant a little: a row of the summaries, a lane of the claim index. The names
in use follow from the jobs that there are, so nothing has to be counted or given back: what a purge
removes is free again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from holdfast.errors import TooManyNames
from holdfast.lifecycle.execution_policy import needs_key
from holdfast.lifecycle.payload import check_number
from holdfast.lifecycle.record import JobId, NewJob
from holdfast.ports.models import Limits, SubmitRefused
from holdfast.stores.side_tables import BYTES_LIMIT

READ_AGAIN_SECONDS = 1.0
"""How old what is known of a tenant may be before a new name is refused because of it."""
TENANTS = 1000
"""How many tenants' names are remembered, the latest: submitters choose them."""
QUEUES_KEY, NEEDS_KEY = "queues_per_tenant", "needs_per_tenant"
"""Where `meta` has the limits; the SQL function of PostgreSQL reads them, too."""
SIGNALS_KEY = "signals_per_job"
UPLOAD_KEY, TENANT_UPLOADS_KEY = "bytes_per_upload", "upload_bytes_per_tenant"
"""The statement `reserve_upload` reads these itself."""
LIMIT_KEYS = [QUEUES_KEY, NEEDS_KEY]
"""The limits of names, as the statement `tenant_names` takes them."""
MOST_SIGNALS = 100_000
"""The highest limit of pending signals: a worker that claims a job reads the names of all."""


def read_limits(meta: Mapping[str, str]) -> Limits:
    """Read the limits that were set; what was not has its usual value."""
    usual = Limits()
    return Limits(
        queues=int(meta.get(QUEUES_KEY, usual.queues)),
        needs=int(meta.get(NEEDS_KEY, usual.needs)),
        signals=int(meta.get(SIGNALS_KEY, usual.signals)),
        upload_bytes=int(meta.get(UPLOAD_KEY, usual.upload_bytes)),
        tenant_upload_bytes=int(meta.get(TENANT_UPLOADS_KEY, usual.tenant_upload_bytes)),
    )


def write_limits(limits: Limits) -> list[tuple[str, str]]:
    """Write limits down, to be kept in `meta`."""
    for name in ("queues", "needs"):
        check_number(getattr(limits, name), name)
    check_number(limits.signals, "signals", high=MOST_SIGNALS)
    for name in ("upload_bytes", "tenant_upload_bytes"):
        check_number(getattr(limits, name), name, high=BYTES_LIMIT)
    return [
        (QUEUES_KEY, str(limits.queues)),
        (NEEDS_KEY, str(limits.needs)),
        (SIGNALS_KEY, str(limits.signals)),
        (UPLOAD_KEY, str(limits.upload_bytes)),
        (TENANT_UPLOADS_KEY, str(limits.tenant_upload_bytes)),
    ]


class Names(Struct):
    """The names that a tenant's jobs have, as they were when they were read."""

    queues: set[str]
    needs: set[int]
    limits: Limits
    read_at: float

    def add_or_refuse(self, job: NewJob) -> str | None:
        """Take the names of a job in; return why that is refused, if it is."""
        record, limits = job.record, self.limits
        needs = needs_key(record.needs)
        if record.queue not in self.queues and len(self.queues) >= limits.queues:
            return (
                f"tenant {record.tenant!r} has jobs in {len(self.queues):,} queues and may have no "
                f"more; use one of them instead of {record.queue!r}, or raise the limit: "
                "holdfast limits --queues N"
            )
        if needs and needs not in self.needs and len(self.needs) >= limits.needs:
            return (
                f"tenant {record.tenant!r} has jobs with {len(self.needs):,} sets of needs and may "
                f"have no more; use one of them instead of {', '.join(sorted(record.needs))}, or "
                "raise the limit: holdfast limits --needs N"
            )
        self.queues.add(record.queue)
        self.needs |= {needs} - {0}
        return None

    def has(self, job: NewJob) -> bool:
        """Return whether a job brings no new name."""
        record = job.record
        return record.queue in self.queues and (
            not record.needs or needs_key(record.needs) in self.needs
        )


class KnownNames:
    """The names of tenants that this process knows of. Mostly a submit brings no new one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._of: dict[str, Names] = {}
        self._clock = clock

    def find_new(self, jobs: Sequence[NewJob]) -> list[NewJob]:
        """Return one of each kind of jobs that bring a name which is not known of."""
        # What many share was made once, and is looked at once.
        distinct = {id(job.event.created): job for job in jobs}.values()
        return [
            job
            for job in distinct
            if (known := self._of.get(job.record.tenant)) is None or not known.has(job)
        ]

    def list_stale_tenants(self, jobs: Sequence[NewJob]) -> list[str]:
        """Return the tenants of these jobs whose names have to be read again."""
        oldest = self._clock() - READ_AGAIN_SECONDS
        tenants = dict.fromkeys(job.record.tenant for job in jobs)
        return [
            tenant
            for tenant in tenants
            if (known := self._of.get(tenant)) is None or known.read_at < oldest
        ]

    def learn(self, tenant: str, rows: Sequence[Sequence[Any]]) -> None:
        """Learn what names a tenant's jobs have, from rows of the statement `tenant_names`."""
        queues = {name for kind, name in rows if kind == "queue"}
        needs = {int(name) for kind, name in rows if kind == "needs"}
        self._of.pop(tenant, None)
        self._of[tenant] = Names(queues, needs, read_limits(dict(map(tuple, rows))), self._clock())
        if len(self._of) > TENANTS:
            del self._of[next(iter(self._of))]

    def find_refused(self, jobs: Sequence[NewJob]) -> dict[JobId, SubmitRefused]:
        """Return which of these jobs bring one name too many."""
        refused: dict[JobId, SubmitRefused] = {}
        last: NewJob | None = None
        for job in jobs:
            if last is not None and job.event.created is last.event.created:
                continue
            known = self._of.get(job.record.tenant)
            why = None if known is None else known.add_or_refuse(job)
            if why is None:
                last = job
            else:
                refused[job.record.id] = SubmitRefused(code=TooManyNames.code, message=why)
        return refused
