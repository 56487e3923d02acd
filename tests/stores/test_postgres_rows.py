"""A batch of submits as arrays: what many jobs share is sent once, whoever made it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.ids import mint_id
from holdfast.lifecycle.alike import decide_like
from holdfast.lifecycle.record import Actor, Facts, NewJob
from holdfast.lifecycle.states import Role, State
from holdfast.lifecycle.submission import Submission
from holdfast.lifecycle.submit import submit
from holdfast.stores.postgres.rows import submit_arrays

GATEWAY = Actor(Role.GATEWAY, "api")


def three_alike() -> list[NewJob]:
    """Decide three submits that share what was made once."""
    first = submit(Submission(id=mint_id(), task="greet", body=b"1"), GATEWAY)
    return [first, decide_like(first, mint_id(), b"2"), decide_like(first, mint_id(), b"3")]


def told(job: NewJob, **changes: Any) -> NewJob:
    """Let the first event say something else."""
    return replace(job, event=replace(job.event, **changes))


def apart(job: NewJob) -> NewJob:
    """Make the same job share nothing."""
    assert job.event.created is not None
    return told(job, created=replace(job.event.created))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"reason": "why"},
        {"actor": "gateway:else"},
        {"to_state": State.PENDING},
        {"facts": Facts(held="limit")},
    ],
)
def test_what_was_made_once_is_sent_as_what_was_made_apart(changes: dict[str, Any]) -> None:
    one, other, last = three_alike()
    other = told(other, **changes)
    if "to_state" in changes:
        other = replace(other, record=replace(other.record, state=State.PENDING))
    jobs = [one, other, last, told(other, request_id="r")]
    assert submit_arrays(jobs) == submit_arrays([apart(job) for job in jobs])


def test_jobs_that_ask_alike_are_one_group_with_one_text() -> None:
    ids, groups, texts, bodies, *_ = arrays = submit_arrays(three_alike())
    assert (len(ids), groups, texts, bodies) == (3, [1, 1, 1], [], ["1", "2", "3"])
    assert len(arrays[-1]) == 1
