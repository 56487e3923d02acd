"""Approvals from Python: the same on an app's store and through a server."""

from __future__ import annotations

import httpx
import pytest

from holdfast import Client, Holdfast
from holdfast.errors import Refused, StaleRevision
from holdfast.http.router import Application
from holdfast.lifecycle.states import State
from tests.support.policies import TWO_PEOPLE


@pytest.mark.req("A13")
async def test_a_client_lists_approves_and_denies(
    server: Application, client: Client, app: Holdfast
) -> None:
    await (await app.store()).apply_policy(TWO_PEOPLE, actor="control:root")
    job = await client.submit("deploy.web")
    assert job.state is State.PENDING
    [listed] = await client.approvals()
    assert (listed.job_id, listed.rule, listed.missing) == (job.id, "prod", 2)
    with pytest.raises(Refused, match="another person"):
        await job.approve()
    transport = httpx.ASGITransport(server)
    async with (
        Client("http://test", "ben", transport=transport) as ben,
        Client("http://test", "cleo", transport=transport) as cleo,
    ):
        rev = job.record.rev
        assert await (await ben.get(job.id)).approve(expected_rev=rev) is State.PENDING
        with pytest.raises(StaleRevision):
            await (await cleo.get(job.id)).approve(expected_rev=rev)
        assert await (await cleo.get(job.id)).approve(reason="good") is State.QUEUED
        other = await client.submit("deploy.db")
        denied = await ben.get(other.id)
        assert await denied.deny(reason="no") is State.DENIED
    assert await client.approvals() == []


def test_threads_without_a_loop_approve_as_well(tmp_path_factory: pytest.TempPathFactory) -> None:
    place = str(tmp_path_factory.mktemp("sync") / "jobs.db")
    ann, ben = (Holdfast(place, name=name) for name in ("ann", "ben"))

    async def apply() -> None:
        await (await ann.store()).apply_policy(
            TWO_PEOPLE.replace("count = 2", "count = 1"), actor="control:root"
        )

    ann.run_sync(apply(), "apply")
    job = ann.named("deploy.web").submit_sync()
    [listed] = ben.approvals_sync()
    assert listed.needs == 1
    assert ben.get_sync(listed.job_id).approve_sync(reason="good") is State.QUEUED
    other = ann.named("deploy.db").submit_sync()
    assert ben.get_sync(other.id).deny_sync() is State.DENIED
    assert job.refresh_sync().state is State.QUEUED
    for app in (ann, ben):
        app.close_sync()
