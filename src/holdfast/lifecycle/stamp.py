"""Stamps: the store's clock, filled into the symbolic times of a decided record."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from holdfast.lifecycle.record import Draft, Job
from holdfast.lifecycle.times import After


def stamp(record: Draft, now: int, floor: int) -> Job:
    """Fill the store's clock into a record, by the same rule as the statement.

    `floor` is the time of the job's last event before: no event is earlier than the one before it.
    """
    # Every written job comes through here: a loop over the names would take three times as long.
    base = now if now > floor else floor
    created, updated, started = record.created_at, record.updated_at, record.started_at
    run_at, deadline, finished = record.run_at, record.deadline_at, record.finished_at
    lease, timeout = record.lease_expires_at, record.timeout_at
    stamped: Any = replace(
        record,
        created_at=base if type(created) is After else created,
        updated_at=base if type(updated) is not After else _not_before(floor, base, updated),
        started_at=started if type(started) is not After else _not_before(floor, base, started),
        run_at=base + run_at.micros if type(run_at) is After else run_at,
        deadline_at=base + deadline.micros if type(deadline) is After else deadline,
        finished_at=base + finished.micros if type(finished) is After else finished,
        lease_expires_at=base + lease.micros if type(lease) is After else lease,
        timeout_at=base + timeout.micros if type(timeout) is After else timeout,
    )
    return stamped  # type: ignore[no-any-return]


def _not_before(floor: int, base: int, time: After) -> int:
    return base if not time.micros else max(base + time.micros, floor)
