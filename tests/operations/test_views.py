"""A job as JSON shows it: one list of fields, held against the record."""

from __future__ import annotations

import pytest

from holdfast.lifecycle.record import Record
from holdfast.lifecycle.states import State
from holdfast.operations.views import JobView
from holdfast.ports.store import Store
from holdfast.testing.store_actions import job_in

INSIDE = {
    "job_id": "shown as id",
    "unread_signals": "shown as pending_signals",
    **dict.fromkeys(
        ("key_kinds", "beats", "epoch", "late_results", "result_digest", "result_ptr", "version"),
        "only stores need it",
    ),
}
"""Fields of a record that JSON does not show under their name, and why."""


def test_a_view_shows_every_field_of_a_record() -> None:
    # The last is read from the holds.
    more = {"internal_id", "signal_revs", "pending_signals", "approval"}
    shown = set(JobView.__struct_fields__) - more
    assert shown | INSIDE.keys() == set(Record.__struct_fields__)


@pytest.mark.parametrize("state", [State.QUEUED, State.RUNNING, State.WAITING, State.DEAD_LETTERED])
async def test_a_view_reads_back_as_the_same_record(store: Store, state: State) -> None:
    await store.open()
    try:
        job = await job_in(store, state, job_id="mine", needs=frozenset({"gpu", "big"}))
    finally:
        await store.close()
    back = JobView.of(job).record()
    for name in set(Record.__struct_fields__) - INSIDE.keys():
        assert getattr(back, name) == getattr(job, name), name
    assert (back.public_id, back.pending_signals) == (job.public_id, job.pending_signals)
