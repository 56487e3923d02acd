"""Lists of jobs where no index tells: a page looks at so many, and the rest comes next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from holdfast.http import jobs as routes
from tests.http.test_jobs import submitted

LOOK = 3
TENANTS = ("default", "mine")


@pytest.fixture(autouse=True)
def _small_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "LIST_LOOK", LOOK)


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
