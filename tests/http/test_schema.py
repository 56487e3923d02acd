"""The whole API against its own document: no request makes it fail, no answer is another one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from holdfast.http.app import make_server
from holdfast.http.endpoints import openapi
from holdfast.wiring import Address, make_store
from tests.cli.test_serving import Running, running
from tests.http.conftest import Names

EXAMPLES = 15
"""Made-up requests for each route, beside those at the bounds of each field."""
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]

app = make_server(make_store(Address(engine="sqlite", place=":memory:")), Names())
schema = schemathesis.openapi.from_dict(openapi())


class Served:
    """A server, and a token that may do everything there."""

    def __init__(self, server: Running) -> None:
        """Make what requests can be about."""
        self.url = str(server.http.base_url)
        made = server.http.post("/v1/tokens", json={"name": "n", "role": "admin"})
        self.headers = {"authorization": f"Bearer {made.json()['token']}"}
        job = {"task": "t", "job_id": "known", "labels": {"a": "b"}}
        hook = {"url": "https://hooks.example/", "id": "known"}
        for path, body in (("/v1/jobs", job), ("/v1/webhooks", hook)):
            reply = server.http.post(path, json=body, headers=self.headers)
            assert reply.status_code == 201, reply.text
        hired = server.http.post("/v1/worker/sessions", json={}, headers=self.headers)
        self.session: str = hired.json()["session"]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server in a process of its own."""
    with running(tmp_path_factory.mktemp("schema"), "up") as server:
        yield Served(server)


def led(case: schemathesis.Case[Any], served: Served) -> None:
    """Lead a request to what is there, which no chance would find; and let it not wait."""
    if {"job", "webhook"} & case.path_parameters.keys():
        case.path_parameters = dict.fromkeys(case.path_parameters, "known")
    case.headers.pop("Holdfast-Tenant", None)
    body: Any = case.body
    if isinstance(body, dict) and isinstance(body.get("session"), str):
        body["session"] = served.session
    for where, name in ((case.query, "wait"), (body, "wait_seconds")):
        if isinstance(where, dict) and name in where:
            where[name] = 0


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
def test_every_answer_is_one_that_the_document_tells(
    case: schemathesis.Case[Any], served: Served
) -> None:
    if len(repr(case.body)) % 2:
        led(case, served)
    reply = case.call(base_url=served.url, headers=served.headers)
    case.validate_response(reply, checks=CHECKS)
