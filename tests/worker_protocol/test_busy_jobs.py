"""A remote worker's reports on a job that others write to all the time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from holdfast.flow.signal import signal
from holdfast.lifecycle.record import Actor, Change
from holdfast.lifecycle.states import Role
from holdfast.ports.models import Outcome
from holdfast.ports.store import Store
from tests.worker_protocol.hand import Hand, events, said, submitted

SENDER = Actor(Role.CONTROL, "sender")


@pytest.fixture
def overtaken(store: Store, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A store in which a signal arrives before every commit."""
    commit = store.commit

    async def late(changes: Sequence[Change]) -> list[Outcome]:
        monkeypatch.setattr(store, "commit", commit)
        for id_ in {one.id for one in changes}:
            await signal(store, id_, SENDER, "note")
        monkeypatch.setattr(store, "commit", late)
        return await commit(changes)

    monkeypatch.setattr(store, "commit", late)
    return store


async def test_a_report_is_not_refused_because_the_job_is_busy(
    http: httpx.AsyncClient, hand: Hand, overtaken: Store
) -> None:
    await submitted(http)
    job = await hand.claim_one()
    answers = await hand.report(
        said(job, "start"),
        said(job, "heartbeat"),
        said(job, "step", name="pay", result=7),
        said(job, "complete", result=7),
    )
    assert [one["accepted"] for one in answers] == [True] * 4
    told = [one for one in await events(http, job) if one != "signal_received"]
    assert told == [
        "job_created",
        "job_claimed",
        "job_started",
        "job_lease_renewed",
        "step_completed",
        "job_succeeded",
    ]


async def test_a_step_of_a_busy_job_that_is_reported_twice_at_once_is_written_once(
    http: httpx.AsyncClient, hand: Hand, overtaken: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    await submitted(http)
    job = await hand.started()
    locked = overtaken.commit_locked
    step = said(job, "step", name="pay", result=7)
    twin: list[Any] = []

    async def after_its_twin(*args: Any, **more: Any) -> Outcome:
        monkeypatch.setattr(overtaken, "commit_locked", locked)
        twin.extend(await hand.report(step))
        return await locked(*args, **more)

    monkeypatch.setattr(overtaken, "commit_locked", after_its_twin)
    [answer] = await hand.report(step)
    assert (answer["accepted"], twin[0]["accepted"]) == (True, True)
    assert (await events(http, job)).count("step_completed") == 1
