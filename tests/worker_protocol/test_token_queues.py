"""A token for some queues reports on jobs of these queues alone."""

from __future__ import annotations

import httpx
import pytest
from msgspec.structs import replace
from starlette.datastructures import Headers

from holdfast.auth.authorization import Caller, TokenRole
from holdfast.http.router import Application
from tests.worker_protocol.hand import Hand, Json, events, read, said, submitted


class ForQueues:
    """Lets everybody in with one worker token, which is for some queues."""

    def __init__(self, *queues: str) -> None:
        self._queues = frozenset(queues)

    async def caller(self, headers: Headers) -> Caller:
        """Name the token."""
        who, queues = "worker-of-", self._queues
        return Caller(name=who, token=who, role=TokenRole.WORKER, tenant=None, queues=queues)


@pytest.fixture
async def running(http: httpx.AsyncClient, hand: Hand) -> Json:
    """A job of queue `a`, started by a token that is for all queues."""
    await submitted(http, queue="a")
    return await hand.started(queues=["a"])


@pytest.mark.parametrize("word", ["heartbeat", "progress", "complete", "release"])
async def test_a_report_on_a_job_of_another_queue_finds_no_job(
    server: Application, http: httpx.AsyncClient, hand: Hand, running: Json, word: str
) -> None:
    everybodys = server.state
    server.state = replace(everybodys, authenticator=ForQueues("b"))
    more = {"progress": 1} if word == "progress" else {}
    [answer] = await hand.report(said(running, word, **more))
    assert (answer["accepted"], answer["held"]) == (False, False)
    assert answer["problem"]["code"] == "no_such_job"
    assert answer["state"] is None
    server.state = everybodys
    assert (await read(http, running))["state"] == "running"
    assert await events(http, running) == ["job_created", "job_claimed", "job_started"]


async def test_logs_and_steps_of_a_job_of_another_queue_are_not_there(
    server: Application, hand: Hand, running: Json
) -> None:
    server.state = replace(server.state, authenticator=ForQueues("b"))
    line = {
        "internal_id": running["internal_id"],
        "attempt": running["attempt"],
        "message": "hello",
    }
    assert await hand.ask("log", lines=[line]) == {"kept": 0}
    wanted = {
        "session": hand.session,
        "internal_id": running["internal_id"],
        "attempt": running["attempt"],
    }
    reply = await hand.http.post("/v1/worker/recall", json=wanted)
    assert (reply.status_code, reply.json()["code"]) == (404, "no_such_job")


async def test_a_report_on_a_job_of_the_tokens_queue_is_taken(
    server: Application, hand: Hand, running: Json
) -> None:
    server.state = replace(server.state, authenticator=ForQueues("a", "b"))
    assert (await hand.say(running, "complete"))["accepted"]
