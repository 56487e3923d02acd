"""Jobs that go through the whole path on a store, while a recorder listens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx

from holdfast import Holdfast
from holdfast import crash_points as points
from holdfast.worker import ownership_check
from tests.path.recorder import Recorder

PASSES = 5
"""How often each step is recorded; what not every pass crosses is not on the path."""
HEARTBEATS = 25
"""More of these: on a busy machine the server's own tick, ten a second, falls into many of them."""
SUBMIT, WORK, HEARTBEAT = "submit", "claim → run → finish", "heartbeat over HTTP"
SETTLE_SECONDS = 0.05
"""How long what a step has left running may run on before the next is recorded."""


async def record_path(url: str) -> dict[str, set[str]]:
    """Return the modules that each step crosses on the store at `url`."""
    recorder = Recorder()
    with recorder.installed():
        async with Holdfast(url) as app:
            await _submits(app, recorder)
            await _works(app, recorder)
        await _heartbeats(url, recorder)
    return recorder.modules()


async def _submits(app: Holdfast, recorder: Recorder) -> None:
    @app.task(queue="unserved")
    async def add(a: int, b: int) -> int:
        return a + b

    await add.submit(1, 2)
    for number in range(PASSES):
        await asyncio.sleep(SETTLE_SECONDS)
        with recorder.step(SUBMIT):
            await add.submit(number, 2)


async def _works(app: Holdfast, recorder: Recorder) -> None:
    @app.task
    async def double(number: int) -> int:
        return 2 * number

    finished = asyncio.Event()
    points.arm("finish.acknowledged", finished.set)
    # On a busy machine a look at the leases, two a second, falls into every pass.
    often, ownership_check.LEASES_SECONDS = ownership_check.LEASES_SECONDS, 3600.0
    try:
        # No tick, so that nothing that is done now and then is done in these seconds.
        async with app.worker(tick="1h", poll="50ms", reconcile=False):
            await double.submit(0)
            await finished.wait()
            for number in range(PASSES):
                # Due only once the submit is over: nothing of it is recorded.
                # Two at a time: jobs that are claimed alike end by a plan.
                await double.options(delay="300ms").submit_many([(number,), (number,)])
                await asyncio.sleep(SETTLE_SECONDS)
                finished.clear()
                with recorder.step(WORK):
                    await finished.wait()
    finally:
        ownership_check.LEASES_SECONDS = often
        points.disarm()


async def _heartbeats(url: str, recorder: Recorder) -> None:
    # Only now: a worker and an app do without the server's modules.
    from holdfast.http.app import make_server
    from holdfast.http.authentication import TokenAuthenticator
    from holdfast.http.listener import HttpServer

    app = Holdfast(url)
    store = app.make_store()
    server = make_server(store, TokenAuthenticator(store))
    gateway = HttpServer(server, port=0)
    serving = asyncio.create_task(gateway.run())
    try:
        async with app, _worker_session(app, gateway.url) as (http, session):
            await app.submit("remote")
            claim = {"session": session, "request_id": "one"}
            [job] = (await http.post("/v1/worker/claim", json=claim)).json()["jobs"]
            report = partial(_report, http, session, job)
            await report("start")
            await report("heartbeat")
            for _ in range(HEARTBEATS):
                await asyncio.sleep(SETTLE_SECONDS)
                with recorder.step(HEARTBEAT):
                    await report("heartbeat")
    finally:
        gateway.stop()
        await serving


@asynccontextmanager
async def _worker_session(app: Holdfast, url: str) -> AsyncIterator[tuple[httpx.AsyncClient, str]]:
    """Open a session of a worker elsewhere, with a token of its own."""
    from holdfast.auth.tokens import TokenRegistry, TokenRole, WantedToken

    tokens = TokenRegistry(await app.store(), actor="test", tenant=None, queues=None)
    token = await tokens.create(WantedToken(name="elsewhere", role=TokenRole.WORKER))
    headers = {"authorization": f"Bearer {token.token}"}
    async with httpx.AsyncClient(base_url=url, headers=headers) as http:
        reply = await http.post("/v1/worker/sessions", json={})
        yield http, reply.json()["session"]


async def _report(http: httpx.AsyncClient, session: str, job: dict[str, Any], word: str) -> None:
    about = {"internal_id": job["internal_id"], "attempt": job["attempt"]}
    body = {"session": session, "reports": [{"say": word, **about}]}
    reply = await http.post("/v1/worker/report", json=body)
    assert reply.json()["reports"][0]["accepted"], reply.text
