"""A change that names the revision it was decided on is made there or not at all."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from holdfast.http.router import Application
from holdfast.lifecycle.states import State
from holdfast.testing.store_actions import job_in

CHANGES: dict[str, tuple[State, dict[str, Any]]] = {
    "/v1/jobs/{job}/cancel": (State.QUEUED, {}),
    "/v1/jobs/{job}/signal": (State.QUEUED, {"name": "go"}),
    "/v1/jobs/{job}/resolve": (State.QUEUED, {"step": "s", "happened": True, "force": True}),
    "/v1/dead-letters/{job}/redrive": (State.DEAD_LETTERED, {}),
    "/v1/dead-letters/{job}/discard": (State.DEAD_LETTERED, {}),
}


@pytest.mark.parametrize("path", CHANGES)
@pytest.mark.req("C3")
async def test_a_stale_revision_changes_nothing(
    server: Application, http: httpx.AsyncClient, path: str
) -> None:
    state, body = CHANGES[path]
    store = server.state.session.store
    job = await job_in(store, state)
    url = path.replace("{job}", str(job.id))
    before = await store.size()
    stale = await http.post(url, json=body, headers={"if-match": f'"{job.rev + 1}"'})
    assert (stale.status_code, stale.json()["code"]) == (412, "stale_revision")
    assert (await store.get([job.id]))[0] == job
    assert await store.size() == before
    done = await http.post(url, json=body, headers={"if-match": f'"{job.rev}"'})
    assert done.status_code == 200, done.text
    assert done.headers["etag"] == f'"{done.json()["rev"]}"'
    [now] = await store.get([job.id])
    assert now is not None
    assert now.rev == job.rev + 1
