"""Submit by one caller: a job of its own, the one its key stands for, or an error that says why."""

from __future__ import annotations

import pytest

from holdfast.errors import BadData, KeyConflict, RequestIdReused
from holdfast.flow.submit import submit_error
from holdfast.ids import mint_id
from holdfast.lifecycle.record import Actor
from holdfast.lifecycle.states import Role
from holdfast.lifecycle.submission import Submission
from holdfast.lifecycle.submit import submit as decide_submit
from holdfast.ports.models import Query, SubmitRefused, Submitted
from holdfast.ports.store import Store

GATEWAY = Actor(Role.GATEWAY, "g")


def asked(body: bytes = b"1", **keys: str) -> Submission:
    """Ask for a job."""
    return Submission(id=mint_id(), task="t", body=body, **keys)  # type: ignore[arg-type]


async def submit(store: Store, submission: Submission, actor: Actor) -> Submitted:
    """Submit one job; a refusal is raised."""
    [outcome] = await store.submit([decide_submit(submission, actor)])
    if isinstance(outcome, SubmitRefused):
        raise submit_error(outcome)
    return outcome


@pytest.mark.req("A1")
async def test_a_known_job_id_with_the_same_body_is_the_same_job(store: Store) -> None:
    first = await submit(store, asked(job_id="a"), GATEWAY)
    again = await submit(store, asked(job_id="a"), GATEWAY)
    assert (first.created, again.created) == (True, False)
    assert first.job.id == again.job.id
    assert len((await store.find(Query())).jobs) == 1


async def test_a_known_job_id_with_another_body_is_refused_and_names_the_holder(
    store: Store,
) -> None:
    first = await submit(store, asked(job_id="a"), GATEWAY)
    with pytest.raises(KeyConflict, match="taken by a job with another body") as caught:
        await submit(store, asked(b"2", job_id="a"), GATEWAY)
    assert caught.value.job_id == str(first.job.id)


async def test_a_request_id_for_another_body_is_refused(store: Store) -> None:
    await submit(store, asked(request_id="r"), GATEWAY)
    with pytest.raises(RequestIdReused) as caught:
        await submit(store, asked(b"2", request_id="r"), GATEWAY)
    assert caught.value.code == "request_id_reused"


async def test_bad_data_is_refused_before_anything_is_written(store: Store) -> None:
    with pytest.raises(BadData, match="queue must not be empty"):
        await submit(store, asked(queue=""), GATEWAY)
    assert (await store.find(Query())).jobs == []
