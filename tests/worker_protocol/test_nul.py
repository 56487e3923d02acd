"""What PostgreSQL cannot hold is refused by both stores alike."""

from __future__ import annotations

import httpx
import pytest

PATHS = [
    *(f"/v1/jobs?{name}=a%00b" for name in (
        "queue", "task", "tenant", "parent", "workflow_id", "correlation_id", "error_code",
    )),
    *(f"/v1/events?{name}=a%00b" for name in ("queue", "task", "tenant", "after")),
    *(f"/v1/dead-letters?{name}=a%00b" for name in ("queue", "task", "tenant", "error_code")),
    *(f"/v1/dead-letter-count?{name}=a%00b" for name in ("queue", "task", "tenant", "error_code")),
    "/v1/jobs/a%00b",
    "/v1/jobs/a%00b/logs",
    "/v1/dead-letters/a%00b",
    "/v1/webhooks/a%00b",
    "/v1/jobs?created_from=0001-01-01T00:00:00Z&created_until=9999-12-31T23:59:59Z",
    "/v1/workers?seen_since=0001-01-01T00:00:00Z",
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
async def test_a_text_that_no_store_can_hold_is_no_fault_of_the_server(
    http: httpx.AsyncClient, path: str
) -> None:
    assert (await http.get(path)).status_code in (200, 404, 422)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/queues/a%00b/pause", {}),
        ("/v1/dead-letters/redrive", {"queue": "a\0b"}),
        ("/v1/dead-letters/redrive", {"to_queue": "a\0b"}),
        ("/v1/dead-letters/discard", {"error_code": "a\0b", "reason": "\0"}),
        ("/v1/worker/sessions", {"queues": ["a\0b"]}),
        ("/v1/worker/sessions", {"host": "a\0b", "tasks": ["\0"]}),
        ("/v1/worker/sessions", {"capabilities": ["\0"]}),
        ("/v1/worker/claim", {"session": "root.\0", "request_id": "r"}),
        ("/v1/worker/claim", {"session": "root.1", "request_id": "\0"}),
        ("/v1/worker/claim", {"session": "root.1", "request_id": "r", "queues": ["\0"]}),
        ("/v1/worker/claim", {"session": "root.1", "request_id": "r", "capabilities": ["\0"]}),
        ("/v1/worker/claim", {"session": "root.1", "request_id": "r", "tasks": ["\0"]}),
        ("/v1/tokens", {"name": "\0", "role": "viewer"}),
        ("/v1/tokens", {"name": "n", "role": "viewer", "tenant": "\0"}),
        ("/v1/tokens", {"name": "n", "role": "viewer", "queues": ["\0"]}),
        ("/v1/webhooks", {"url": "https://hooks.example/", "tenant": "\0"}),
        ("/v1/webhooks", {"url": "https://hooks.example/", "queue": "\0", "task": "\0"}),
    ],
)
async def test_a_body_that_no_store_can_hold_is_refused(
    http: httpx.AsyncClient, path: str, body: dict[str, object]
) -> None:
    reply = await http.post(path, json=body)
    assert reply.status_code in (200, 422), reply.text


@pytest.mark.parametrize("path", ["/v1/tokens/a%00b", "/v1/webhooks/a%00b"])
async def test_what_has_no_such_name_is_not_there(http: httpx.AsyncClient, path: str) -> None:
    assert (await http.delete(path)).status_code == 404
