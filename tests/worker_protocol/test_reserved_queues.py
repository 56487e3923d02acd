"""Workers over HTTP are not given jobs of Holdfast's own services."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
from msgspec.structs import replace
from starlette.datastructures import Headers

from holdfast.auth.authorization import Caller, TokenRole
from holdfast.http.router import Application
from holdfast.ids import mint_id
from holdfast.lifecycle.record import Actor
from holdfast.lifecycle.states import Role
from holdfast.lifecycle.submission import Submission
from holdfast.lifecycle.submit import submit
from holdfast.ports.store import Store
from holdfast.webhooks.registry import QUEUE, TASK
from tests.worker_protocol.hand import Hand


@pytest.fixture
async def _delivery(store: Store) -> None:
    """A message for a webhook, waiting to be delivered."""
    made = Submission(id=mint_id(), task=TASK, queue=QUEUE)
    await store.submit([submit(made, Actor(Role.GATEWAY, "postman"), internal=True)])


@pytest.mark.usefixtures("_delivery")
async def test_a_worker_cannot_claim_from_a_reserved_queue(
    call: Callable[[str | None], httpx.AsyncClient], hand: Hand
) -> None:
    session = await call("worker").post("/v1/worker/sessions", json={"queues": [QUEUE]})
    assert (session.status_code, session.json()["code"]) == (422, "reserved_name")
    claim = {"session": hand.session, "request_id": "r", "queues": ["default", QUEUE]}
    claimed = await hand.http.post("/v1/worker/claim", json=claim)
    assert (claimed.status_code, claimed.json()["code"]) == (422, "reserved_name")


class For:
    """Lets everybody in with a worker token for some queues."""

    def __init__(self, *queues: str) -> None:
        self._queues = frozenset(queues)

    async def caller(self, headers: Headers) -> Caller:
        """Name the token."""
        name, queues = "w", self._queues
        return Caller(name=name, token=name, role=TokenRole.WORKER, tenant=None, queues=queues)


@pytest.mark.usefixtures("_delivery")
@pytest.mark.parametrize("queues", [(QUEUE,), ()])
async def test_a_token_for_no_open_queue_claims_nothing_without_naming_one(
    server: Application, http: httpx.AsyncClient, queues: tuple[str, ...]
) -> None:
    await http.post("/v1/jobs", json={"task": "t"})
    server.state = replace(server.state, authenticator=For(*queues))
    opened = await http.post("/v1/worker/sessions", json={})
    assert (opened.status_code, opened.json()["code"]) == (403, "forbidden")
    claimed = await http.post("/v1/worker/claim", json={"session": "w.1", "request_id": "r"})
    assert (claimed.status_code, claimed.json()["code"]) == (403, "forbidden")
