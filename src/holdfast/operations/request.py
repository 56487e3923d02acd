"""An operation as a value: its parameters, its result, and its form over HTTP."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, Protocol, TypeVar

from msgspec import Struct

from holdfast.auth.authorization import Scope

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class InHeader(Struct, frozen=True):
    """Marks a field that is sent as a header."""

    name: str


class WholeBody(Struct, frozen=True):
    """Marks a field whose value is the whole JSON body."""


class StreamedBody(Struct, frozen=True):
    """Marks a field of bytes that are the body, sent and read piece by piece: not JSON."""

    media: tuple[str, ...]
    """The media types that are accepted; clients send the first, and it is the documented one."""


class Request(Struct, Generic[R_co], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One operation with its arguments; `R_co` is what it returns.

    Over HTTP a field that `path` names is a part of the path, and one that is marked `InHeader`,
    `WholeBody` or `StreamedBody` is that. The other fields are the query of a GET, PUT or DELETE,
    and the JSON object of a POST. A field has the name and the type that it has there.
    """

    method: ClassVar[str] = "GET"
    path: ClassVar[str | None] = None
    """None if it has no route of its own: a client combines other requests."""
    scope: ClassVar[Scope | None] = None
    """The scope that the caller's role must have; None if no token is needed."""
    group: ClassVar[str] = ""
    """The tag in the OpenAPI document."""
    reply: ClassVar[Any] = None
    """The type of its answer."""
    status: ClassVar[int] = 200
    also: ClassVar[tuple[tuple[int, Any], ...]] = ()
    """Other statuses, each with the type of its answer; None if it has no body."""
    body_name: ClassVar[str | None] = None
    """The name of a POST's JSON object in the OpenAPI document."""
    operation_name: ClassVar[str | None] = None
    """The name of the operation there; by default it is derived from the class."""
    for_tenant: ClassVar[bool] = True
    """A token that is bound to no tenant may choose one by the header `Holdfast-Tenant`."""
    media: ClassVar[tuple[str, ...]] = ("application/json",)
    """The media types of its answers; all but JSON are plain text."""


class Operations(Protocol):
    """What one actor can do with the jobs of one tenant or of all.

    A job of another tenant raises NoSuchJob, too. A request that is repeated with its `request_id`
    is carried out once; an `expected_rev` that is not the job's revision raises StaleRevision (C3).
    """

    async def do(self, request: Request[R]) -> R:
        """Carry out a request, and return its result."""
