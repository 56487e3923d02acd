"""A client asks until it is answered, and what was done before is not done again."""

from __future__ import annotations

import httpx
import pytest

from holdfast import Client
from holdfast.client import transport
from holdfast.errors import (
    PartlySubmitted,
    RateLimited,
    ServerFailed,
    ServerUnavailable,
    StaleRevision,
)
from holdfast.http.router import Application
from holdfast.lifecycle.states import State
from holdfast.operations.requests import CancelJob, SubmitJob, WantedJob


class Meddler(httpx.AsyncBaseTransport):
    """Stands between a client and its server, and does with the first requests what it is told."""

    def __init__(self, server: Application | None = None) -> None:
        """Meddle with nothing yet."""
        self._server = None if server is None else httpx.ASGITransport(server)
        self.plan: list[str] = []
        self.seen: list[httpx.Request] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Hand one on, or not."""
        self.seen.append(request)
        match self.plan.pop(0) if self.plan else "":
            case "unsent":
                raise httpx.ConnectError("nobody there")
            case "unheard":
                await self._asked(request)
                raise httpx.ReadError("cut off")
            case "":
                return await self._asked(request)
            case status:
                headers = {"retry-after": "0"}
                return httpx.Response(int(status), headers=headers, content=_problem(status))

    async def _asked(self, request: httpx.Request) -> httpx.Response:
        assert self._server is not None
        return await self._server.handle_async_request(request)


def _problem(status: str) -> bytes:
    codes = {"429": "rate_limited", "503": "store_unavailable", "500": "server_failed"}
    if status not in codes:
        return b"<html>Bad gateway</html>"
    return (
        f'{{"type": "x", "title": "x", "status": {status}, "code": "{codes[status]}",'
        ' "detail": "so it is", "advice": "x", "request_id": "r-1"}'
    ).encode()


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rest no longer than needed."""
    monkeypatch.setattr(transport, "FIRST_PAUSE_SECONDS", 0.001)
    monkeypatch.setattr(transport, "LONGEST_PAUSE_SECONDS", 0.002)


@pytest.fixture
def meddler(server: Application) -> Meddler:
    """Somebody on the way to the server."""
    return Meddler(server)


@pytest.fixture
async def asking(meddler: Meddler) -> Client:
    """A client behind it; it holds no connection that would have to be closed."""
    return Client("http://test", transport=meddler)


@pytest.mark.parametrize("plan", ["unsent", "unheard", "429", "502", "503", "504"])
async def test_a_submit_is_asked_again_until_it_is_answered(
    meddler: Meddler, asking: Client, plan: str
) -> None:
    meddler.plan = [plan] * 3
    job = await asking.submit("other", a=1)
    assert job.created
    assert [one.id async for one in asking.jobs()] == [job.id]
    submits = [one for one in meddler.seen if one.method == "POST"]
    assert len(submits) == 4
    assert len({one.headers["idempotency-key"] for one in submits}) == 1


async def test_a_job_that_another_made_is_not_taken_for_ones_own(
    meddler: Meddler, asking: Client
) -> None:
    task = asking.named("other").options(dedupe_key="k")
    first = await task.submit()
    meddler.plan = ["unheard"]
    again = await task.submit()
    assert (again.id, again.created) == (first.id, False)


@pytest.mark.parametrize("request_id", ["plain", "ünïcode", "a\tb", "x" * 300, " lead"])
async def test_a_request_id_may_be_any_text(
    meddler: Meddler, asking: Client, request_id: str
) -> None:
    """An earlier submit made the job, also where the answer to this one was lost at first."""
    operations = await asking.operations()
    for submit in (
        SubmitJob(job=WantedJob(task="other", request_id=request_id)),
        SubmitJob(job=WantedJob(task="more"), request_id=f"{request_id}2"),
    ):
        first = await operations.do(submit)
        meddler.plan = ["unheard"]
        again = await operations.do(submit)
        assert (first.created, again.created) == (True, False)
        assert again.job.id == first.job.id


async def test_a_submit_whose_answer_was_lost_made_its_job(
    meddler: Meddler, asking: Client
) -> None:
    meddler.plan = ["unheard"]
    operations = await asking.operations()
    assert (await operations.do(SubmitJob(job=WantedJob(task="other")))).created


async def test_of_many_parts_those_that_are_there_are_told(
    meddler: Meddler, asking: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.client.remote.PART_JOBS", 2)
    task = asking.named("other")
    meddler.plan = ["", "500", ""]
    with pytest.raises(PartlySubmitted) as partly:
        await asking.submit_many([task.prepare(number=number) for number in range(5)])
    first, second, *failed, last = partly.value.outcomes
    assert [type(one) for one in failed] == [ServerFailed, ServerFailed]
    assert [job.id async for job in asking.jobs()] == [last.id, second.id, first.id]
    meddler.plan = ["500"]
    with pytest.raises(ServerFailed):
        await asking.submit_many([task.prepare(), task.prepare(), task.prepare()])


async def test_a_signal_whose_answer_was_lost_is_sent_once(
    meddler: Meddler, asking: Client
) -> None:
    job = await asking.submit("other")
    meddler.plan = ["unheard"]
    await job.signal("go")
    assert [signal.name for signal in job.record.signals] == ["go"]
    assert len(await job.events()) == 2


@pytest.mark.req("C3")
async def test_a_cancel_at_a_revision_whose_answer_was_lost_is_no_conflict(
    meddler: Meddler, asking: Client
) -> None:
    job = await asking.submit("other")
    operations = await asking.operations()
    meddler.plan = ["unheard"]
    ended = await operations.do(CancelJob(job=job.record.id, expected_rev=job.record.rev))
    assert (ended.state, ended.rev) == (State.CANCELLED, 2)
    with pytest.raises(StaleRevision):
        await operations.do(CancelJob(job=job.record.id, expected_rev=1))


async def test_patience_ends(meddler: Meddler, server: Application) -> None:
    meddler.plan = ["unsent"] * 1000
    client = Client("http://test", transport=meddler, patience="10ms")
    with pytest.raises(ServerUnavailable, match="http://test does not answer: nobody there"):
        await client.submit("other")
    assert 1 < len(meddler.seen) < 1000
    meddler.plan = ["429"] * 1000
    with pytest.raises(RateLimited):
        await client.submit("other")


async def test_a_server_that_failed_by_itself_is_not_asked_again(
    meddler: Meddler, asking: Client
) -> None:
    meddler.plan = ["500"]
    with pytest.raises(ServerFailed, match=r"so it is \(request r-1\)"):
        await asking.submit("other")
    assert len(meddler.seen) == 1


async def test_what_is_no_holdfast_server_is_named(meddler: Meddler, asking: Client) -> None:
    for status in ("301", "404"):
        meddler.plan = [status]
        with pytest.raises(ServerFailed, match=f"answered {status}, but not as a Holdfast server"):
            await asking.get("j")
    assert len(meddler.seen) == 2


async def test_an_answer_that_cannot_be_read_is_an_error_of_the_server() -> None:
    async def answer(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=b'{"id": 7}')

    async with Client("http://test", transport=httpx.MockTransport(answer)) as client:
        with pytest.raises(ServerFailed, match="cannot be read"):
            await client.get("j")


async def test_a_token_is_sent_to_the_server_alone_and_not_to_where_it_points() -> None:
    asked: list[str] = []

    async def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        return httpx.Response(307, headers={"location": "http://elsewhere/"})

    async with Client("http://test", "hf_x", transport=httpx.MockTransport(answer)) as client:
        with pytest.raises(ServerFailed):
            await client.get("j")
    assert asked == ["test"]
