"""Correlate: what undoes a job is found by the job's own correlation (B18).

The law decides a compensation by the record alone; the correlation stands in the first event.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import StoreUnavailable
from holdfast.lifecycle.job import Change
from holdfast.lifecycle.linked import brings_compensation, with_correlation
from holdfast.ports import Jobs


async def correlated(store: Jobs, changes: Sequence[Change]) -> list[Change]:
    """Give the compensations among these changes the correlation of the jobs that they undo."""
    return [
        await _correlated(store, change) if brings_compensation(change) else change
        for change in changes
    ]


async def _correlated(store: Jobs, change: Change) -> Change:
    try:
        [first] = await store.events(change.id, limit=1)
    except StoreUnavailable:
        raise
    except Exception:  # noqa: BLE001 - a first event that cannot be read must not keep a job alive
        return change
    return with_correlation(change, first.correlation_id)
