"""A request that was let in: who asks, and the operations that are theirs."""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar
from urllib.parse import unquote

from fastapi import Depends
from msgspec import Struct
from starlette.datastructures import Headers
from starlette.requests import Request

from holdfast.errors import BadData, StoreUnavailable, Unauthorized
from holdfast.http.bodies import check_media, read_json
from holdfast.http.body_budget import BodyBudget
from holdfast.http.ending import Ending
from holdfast.http.guard import at_end_of, request_id_of
from holdfast.http.live import Live
from holdfast.http.places import Places
from holdfast.http.queries import check_query
from holdfast.http.rates import Rates
from holdfast.http.scopes import Caller, Scope
from holdfast.lifecycle.payload import check_text
from holdfast.local import LocalOperations
from holdfast.operations import Answer, Wanted
from holdfast.outside import Outside
from holdfast.ports import Submitted
from holdfast.services.session import Session
from holdfast.tasks import Task
from holdfast.telemetry import Meters
from holdfast.telemetry.depths import Depths

T = TypeVar("T")


class Doorkeeper(Protocol):
    """Who tells whom a request comes from."""

    async def caller(self, headers: Headers) -> Caller:
        """Tell who sent these; Unauthorized if nobody who counts."""


class House(Struct, frozen=True, kw_only=True):
    """What all requests share."""

    session: Session
    doorkeeper: Doorkeeper
    rates: Rates
    places: Places
    bodies: BodyBudget
    live: Live
    tasks: Mapping[str, Task[Any, Any]]
    meters: Meters
    depths: Depths
    ending: Ending
    """Whoever waits for long does so through it: a server that ends waits for nobody."""
    outside: Outside
    """What refuses webhooks' addresses that are not public."""

    def check_open(self) -> None:
        """Refuse while the database has not answered yet."""
        if not self.session.is_open:
            raise StoreUnavailable("the database has not answered since the server began")


class Ask(Struct, frozen=True, kw_only=True):
    """One request, let in."""

    request: Request
    caller: Caller
    house: House

    @property
    def jobs(self) -> LocalOperations:
        """What the caller can do with jobs."""
        return LocalOperations(
            self.house.session,
            name=self.caller.name,
            tenant=self.tenant,
            queues=self.caller.queues,
            tasks=self.house.tasks,
        )

    @property
    def tenant(self) -> str | None:
        """Whose jobs the caller acts on; None: everybody's."""
        return self.caller.tenant_for(self._tenant)

    @property
    def _tenant(self) -> str | None:
        """The tenant that is asked for, by whoever may act for all; percent-encoded."""
        said = self.request.headers.get("holdfast-tenant")
        return None if said is None else check_text(unquote(said), "Holdfast-Tenant", limit=200)

    @property
    def key(self) -> str | None:
        """The `Idempotency-Key`: the same again is done once."""
        key = self.request.headers.get("idempotency-key")
        return None if key is None else check_text(key, "Idempotency-Key", limit=200)

    @property
    def expected_rev(self) -> int | None:
        """The revision that `If-Match` demands (C3)."""
        tag = self.request.headers.get("if-match")
        if tag is None or tag.strip() == "*":
            return None
        text = tag.strip().removeprefix("W/").strip('"')
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise BadData(f'If-Match must be a job\'s revision, such as "3"; not {tag!r}')
        return int(text)

    @property
    def request_id(self) -> str:
        """What this request is called in logs and answers."""
        return request_id_of(self.request)

    async def still(self) -> None:
        """Refuse whoever has lost what they were let in by: a token may be revoked meanwhile."""
        caller = await self.house.doorkeeper.caller(self.request.headers)
        if caller != self.caller:
            raise Unauthorized("the token stands for something else by now")

    async def patiently(self, work: Coroutine[Any, Any, T]) -> T | None:
        """Await something that may take long; None if the server ends or the client leaves first.

        A long poll whose client has left gives its place back at once.
        """
        return await self.house.ending.unless(work, self.request.receive)

    async def submit(self, wanted: Sequence[Wanted]) -> list[Answer]:
        """Submit jobs, into queues that the token covers."""
        answers = await self.jobs.submit(wanted)
        for answer in answers:
            if isinstance(answer, Submitted) and answer.created:
                self.house.meters.submitted(answer.job.task, answer.job.queue)
        return answers

    async def body(self, kind: type[T]) -> T:
        """Read the request's JSON."""
        check_media(self.request)
        text = await self.house.bodies.read(self.request, self.caller.token)
        return read_json(text, kind)


def asking(scope: Scope) -> Any:
    """Let in whoever's role covers `scope`; what every route begins with."""

    async def let_in(request: Request) -> Ask:
        house: House = request.app.state.house
        house.check_open()
        caller = await house.doorkeeper.caller(request.headers)
        house.rates.take(caller.token)
        caller.demand(scope)
        check_query(request)
        house.places.take(caller, at_end_of(request))
        return Ask(request=request, caller=caller, house=house)

    let_in.scope = scope  # type: ignore[attr-defined]
    return Depends(let_in)
