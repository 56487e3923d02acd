"""Lists of jobs where no index tells: a page looks at so many, and the rest comes next."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any
from uuid import UUID

import httpx
import pytest

from holdfast.http.router import Application
from holdfast.lifecycle.record import JobId
from holdfast.operations import list_jobs
from holdfast.ports.models import Query as JobQuery
from tests.http.test_jobs import submitted

LOOK = 3
TENANTS = ("default", "mine")


@pytest.fixture(autouse=True)
def _small_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(list_jobs, "SCAN_LIMIT", LOOK)


async def listed(http: httpx.AsyncClient, **filters: Any) -> tuple[list[str], str | None]:
    """Ask for one page."""
    page = (await http.get("/v1/jobs", params=filters)).json()
    return [job["id"] for job in page["jobs"]], page["next"]


async def test_a_page_that_found_nothing_yet_goes_on(http: httpx.AsyncClient) -> None:
    rare = (await submitted(http, task="rare"))["id"]
    for _ in range(2 * LOOK):
        await submitted(http)
    pages = [await listed(http, task="rare")]
    while pages[-1][1] is not None:
        pages.append(await listed(http, task="rare", before=pages[-1][1]))
    assert [ids for ids, _ in pages] == [[], [rare]]


async def test_a_list_ends_where_the_summaries_know_of_no_more(http: httpx.AsyncClient) -> None:
    for _ in range(2 * LOOK):
        await submitted(http)
    new = (await submitted(http))["id"]
    await http.post(f"/v1/jobs/{new}/cancel", json={})
    assert await listed(http, state="cancelled") == ([new], None)
    assert await listed(http, state="running", queue="default") == ([], None)
    # Of those before a job nobody has counted.
    assert (await listed(http, state="running", before=new))[1] is not None


async def test_all_of_a_queue_are_found_however_old(http: httpx.AsyncClient) -> None:
    old = (await submitted(http, queue="quiet"))["id"]
    for _ in range(2 * LOOK):
        await submitted(http)
    assert await listed(http, queue="quiet") == ([old], None)
    assert await listed(http, queue="quiet", state="queued", task="other") == ([old], None)


async def test_a_list_of_the_default_tenant_is_bounded_beside_others(
    call: Callable[[str | None], httpx.AsyncClient],
    server: Application,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.operations.list_jobs.AMONG_OTHERS", 2)
    # Each made in a millisecond of its own.
    ids = (JobId(UUID(int=n << 80 | 7 << 76 | 2 << 62)) for n in count(1_700_000_000_000))
    monkeypatch.setattr("holdfast.flow.submit.mint_id", lambda: next(ids))
    everybody, theirs, mine = call(None), list[str](), list[str]()
    for tenant in ("default", *["theirs"] * (5 * LOOK), "default"):
        job = await submitted(everybody, tenant=tenant, task="rare")
        (mine if tenant == "default" else theirs).append(job["internal_id"])
    store = server.state.session.store
    looks: list[int | None] = []
    find = store.find

    async def found(query: JobQuery) -> Any:
        looks.append(query.look)
        return await find(query)

    monkeypatch.setattr(store, "find", found)
    viewer = call("viewer@default")
    pages = [await listed(viewer, task="rare")]
    while pages[-1][1] is not None:
        pages.append(await listed(viewer, task="rare", before=pages[-1][1]))
    assert [id_ for ids, _ in pages for id_ in ids] == mine[::-1]
    assert len(pages) >= 3
    assert set(looks) == {2 * LOOK}
    assert {following for _, following in pages}.isdisjoint(theirs)


@pytest.mark.parametrize("filters", [{}, {"error_code": "handler_error"}, {"workflow_id": "w"}])
async def test_a_tenants_list_tells_nothing_of_how_much_others_have(
    call: Callable[[str | None], httpx.AsyncClient], filters: dict[str, str]
) -> None:
    everybody = call(None)
    mine = [await submitted(everybody, tenant=tenant, workflow_id="w") for tenant in TENANTS]
    for _ in range(2 * LOOK):
        await submitted(everybody, tenant="theirs", workflow_id="w")
    for tenant, job in zip(TENANTS, mine, strict=True):
        found = [] if "error_code" in filters else [job["id"]]
        assert await listed(call(f"viewer@{tenant}"), state="queued", **filters) == (found, None)


async def test_a_label_that_could_not_be_filtered_by_is_refused(http: httpx.AsyncClient) -> None:
    wanted = {"task": "t", "job_id": "odd", "labels": {"a=b": "c"}}
    refused = await http.post("/v1/jobs", json=wanted)
    assert (refused.status_code, refused.json()["field"]) == (422, "$.labels")
    made = await http.post("/v1/jobs", json=wanted | {"labels": {"a": "b=c"}})
    assert made.status_code == 201
    found = (await http.get("/v1/jobs", params={"label": "a=b=c"})).json()["jobs"]
    assert [job["id"] for job in found] == ["odd"]
