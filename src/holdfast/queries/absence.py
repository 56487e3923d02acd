"""Why a job is not there: it never was, or it was purged."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from holdfast.errors import JobPurged, NoSuchJob
from holdfast.lifecycle.record import JobId
from holdfast.lifecycle.times import SECOND
from holdfast.ports.store import Store


async def missing_job_error(
    store: Store,
    asked: str | UUID,
    *,
    id: JobId | None = None,
    tenant: str | None = None,
    names_tenant: bool = False,
) -> NoSuchJob:
    """Return the error for a job that does not exist, or that belongs to another tenant.

    `asked` is what the caller gave, `id` the internal id, where it is known.
    """
    id_ = id or _read_id(asked)
    found = None if id_ is None else (await store.purged([id_]))[0]
    if found is not None and tenant in (None, found.tenant):
        when = datetime.fromtimestamp(found.at // SECOND, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        text = f"job {asked} was purged at {when}: the term of its record was over"
        return JobPurged(text, job_id=str(asked))
    of_tenant = f" of tenant {tenant!r}" if names_tenant and tenant is not None else ""
    return NoSuchJob(f"no job {asked}{of_tenant}", job_id=str(asked))


def _read_id(asked: str | UUID) -> JobId | None:
    try:
        return JobId(asked if isinstance(asked, UUID) else UUID(asked))
    except ValueError:
        return None
