"""Where a claim enters its ranges: behind the latest job that the claims before it brought."""

from __future__ import annotations

from holdfast.identity import mint_id
from holdfast.lifecycle.job import Created, Record
from holdfast.lifecycle.states import Priority, State
from holdfast.ports import Claimed
from holdfast.stores.postgres.claiming import CURSOR_AFTER, NOWHERE, Cursors
from holdfast.stores.ranges import Range

AGEING = dict.fromkeys(Priority, 100)
MAIL, NEWS = Created(queue="mail"), Created(queue="news")


def claimed(created: Created, run_at: int) -> Claimed:
    """Bring a job that was due at a time."""
    job = Record(
        id=mint_id(),
        queue=created.queue,
        created_at=1,
        updated_at=1,
        state=State.CLAIMED,
        rev=2,
        run_at=run_at,
    )
    return Claimed(job=job, created=created, body=None)


def arm(queue: str) -> Range:
    """Name the range of a queue's ordinary jobs."""
    return Range(queue, 0, Priority.INTERACTIVE.code, 100)


def test_each_range_is_entered_behind_its_latest_job() -> None:
    cursors = Cursors()
    jobs = [
        claimed(MAIL, 5),
        claimed(MAIL, 9),
        claimed(MAIL, 7),
        claimed(NEWS, 3),
        claimed(MAIL, 6),
        claimed(Created(queue="news"), 2),
    ]
    for _ in range(CURSOR_AFTER):
        cursors.learn(jobs, len(jobs), AGEING)
    assert cursors.starts([arm("mail"), arm("news"), arm("else")]) == [109, 103, NOWHERE]


def test_a_claim_that_comes_back_short_begins_at_the_beginning_again() -> None:
    cursors = Cursors()
    for _ in range(CURSOR_AFTER):
        cursors.learn([claimed(MAIL, 5), claimed(MAIL, 6)], 2, AGEING)
    cursors.learn([claimed(MAIL, 7)], 2, AGEING)
    assert cursors.starts([arm("mail")]) == [NOWHERE]
