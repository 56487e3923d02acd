"""The OpenAPI document: it is whole, and what clients were written against has not changed.

`openapi.txt` is the document that FastAPI wrote before the routes were made from the list of
operations (ADR 0022), without its prose. It is not to be edited: each deviation from it stands in
`DEVIATIONS`, with its reason.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import httpx
import pytest

from holdfast.http.endpoints import ENDPOINTS
from holdfast.http.routes import AnyEndpoint
from holdfast.operations.http_format import layout_of
from tests.http.openapi_document import GOLDEN, bare, written

OLD_DOCUMENT = "13b723165464a7254679d9e90f3652c5d3dfd703d1f59b42552b52d22b060dec"
"""The SHA-256 of `openapi.txt`."""
JOB = '{"$ref": "#/components/schemas/Wanted"}'
COMMAND = '{"$ref": "#/components/schemas/WantedCommand"}'
TOPIC = '{"$ref": "#/components/schemas/WantedTopic"}'
ANY_JOB = f'{{"anyOf": [{JOB}, {COMMAND}, {TOPIC}]}}'
NULLABLE_TEXT = '{"anyOf": [{"type": "string"}, {"type": "null"}], "default": null}'
LINES = '"lines": {"items": {"$ref": "#/components/schemas/LogView"}, "type": "array"}'
TEXT, NUMBER, FLAG = '{"type": "string"}', '{"type": "integer"}', '{"type": "boolean"}'
LOG_NAMES = f'"internal_id": {{"format": "uuid", "type": "string"}}, "job_id": {TEXT}, {LINES}'
LOG_STATE = '"ended": {"default": false, "type": "boolean"}'
LOG_SIZE = f'"next": {{"default": 0, "type": "integer"}}, "total_bytes": {NUMBER}'
STREAM = '{"$ref": "#/components/schemas/OutputStream"}'
THOUSAND = '{"default": 1000, "maximum": 1000, "minimum": 1, "type": "integer"}}'
MILLION = '{"maximum": 1000000, "minimum": 1, "type": "integer"}'
A_LOG = (
    '"responses": {"200": {"content": '
    '{"application/json": {"schema": {"$ref": "#/components/schemas/Log"}}'
)
JOB_IN_PATH = '{"in": "path", "name": "job", "required": true, "schema": {"type": "string"}}, '
AFTER = (
    '{"in": "query", "name": "after", "required": false, "schema": '
    '{"default": 0, "maximum": 4611686018427387904, "minimum": 0, "type": "integer"}}, '
)
LIMIT = f'{{"in": "query", "name": "limit", "required": false, "schema": {THOUSAND}'
LAST_EVENT_ID = (
    '{"in": "header", "name": "last-event-id", "required": false, "schema": '
    '{"anyOf": [{"maxLength": 400, "type": "string"}, {"type": "null"}]}}, '
)
NULLABLE = (
    '{{"in": "query", "name": "{0}", "required": false, '
    '"schema": {{"anyOf": [{1}, {{"type": "null"}}]}}}}'
)
NULLABLE_NUMBER = '{"anyOf": [{"type": "integer"}, {"type": "null"}], "default": null}'
REASON = '{{"$ref": "#/components/schemas/{0}"}}, '
REASON_CODE = '"{0}": "#/components/schemas/{1}", '
HOOK_EVENTS = '{"items": {"$ref": "#/components/schemas/WebhookEvent"}, "type": "array"}'
DEVIATIONS = {
    # It said that metrics may come as JSON, of any form. They never do.
    "/metrics get ": ('"application/json": {"schema": {}}, ', ""),
    # A submit also takes a command or an agent, which has a `type` (D17), and a topic (A2).
    "/v1/jobs post ": (JOB, ANY_JOB),
    "schema Many ": (JOB, ANY_JOB),
    # Where a result is (A9).
    "schema JobView ": ('"retention": ', f'"result_ptr": {NULLABLE_TEXT}, "retention": '),
    # The answer to a command has its state in the words of its document (D11).
    "schema Receipt ": ('}, "required"', f', "status": {NULLABLE_TEXT}}}, "required"'),
    # A log may be what a command printed: to a stream, with a size. It shows where to continue.
    "schema Log ": (LOG_NAMES, f'{LOG_STATE}, {LOG_NAMES}, {LOG_SIZE}, "truncated": {FLAG}'),
    "schema LogView ": (
        f'"message": {TEXT}, "position": {NUMBER}',
        f'"message": {TEXT}, "partial": {FLAG}, "position": {NUMBER}, "stream": {STREAM}',
    ),
    # A log may be read from near its end, of one stream, and line by line as it comes.
    "/v1/jobs/{job}/logs get ": (
        f"{JOB_IN_PATH}{AFTER}{LIMIT}], {A_LOG}}}}}, ",
        f"{LAST_EVENT_ID}{JOB_IN_PATH}{AFTER}{LIMIT}, {NULLABLE.format('stream', STREAM)}, "
        f"{NULLABLE.format('tail', MILLION)}], {A_LOG}, "
        '"text/event-stream": {"schema": {"type": "string"}}}}, "204": {}, ',
    ),
    # A worker announces the room of its host.
    "schema WorkerStatus ": (
        f'"concurrency": {NUMBER}, "host": {TEXT}, ',
        f'"concurrency": {NUMBER}, "cpus": {NULLABLE_NUMBER}, "free_cpus": {NULLABLE_NUMBER}, '
        f'"free_memory_mb": {NULLABLE_NUMBER}, "host": {TEXT}, "memory_mb": {NULLABLE_NUMBER}, ',
    ),
    # What runs in a box may reach a network, and which.
    "schema Running ": ('"seen": ', f'"network": {NULLABLE_TEXT}, "seen": '),
    # A person may approve a job, with a token of that role, and sees what it awaits.
    "schema EventType ": ('"job_adopted", ', '"job_adopted", "job_approved", '),
    "schema TokenRole ": ('"admin", ', '"admin", "approver", '),
    # A webhook may be notified of approvals that are requested.
    "schema WantedWebhook ": (
        '"properties": {"id"',
        f'"properties": {{"events": {{"anyOf": [{HOOK_EVENTS}, {{"type": "null"}}], '
        '"default": null}, "id"',
    ),
}
"""What a line of the old document had, and what it has instead."""
WAITS = ("AwaitsAdmission", "AwaitsApproval", "AwaitsDecision", "WaitsForUpload")
OF_APPROVALS = [
    (
        "schema JobView ",
        '{"attempt"',
        '{"approval": {"anyOf": [{"$ref": "#/components/schemas/MissingApproval"}, '
        '{"type": "null"}], "default": null}, "attempt"',
    ),
]
OF_WEBHOOKS = [
    ("schema WebhookView ", '"string"}, "id"', f'"string"}}, "events": {HOOK_EVENTS}, "id"'),
    ("schema WebhookView ", '"created_by", "id"', '"created_by", "events", "id"'),
]
OF_WHY = [
    # One more: a job waits for its upload.
    (
        "schema Why ",
        REASON.format("AwaitsAdmission"),
        "".join(map(REASON.format, WAITS)),
    ),
    (
        "schema Why ",
        '"waits_for_children": "#/components/schemas/WaitsForChildren"',
        REASON_CODE.format("waits_for_children", "WaitsForChildren")
        + '"waits_for_upload": "#/components/schemas/WaitsForUpload"',
    ),
    # Two more reasons: of commands, and of hosts.
    (
        "schema Why ",
        REASON.format("NoCapableWorker"),
        "".join(map(REASON.format, ("NoCapableWorker", "NoCommandWorker", "NoRoom"))),
    ),
    (
        "schema Why ",
        REASON_CODE.format("no_capable_worker", "NoCapableWorker"),
        REASON_CODE.format("no_capable_worker", "NoCapableWorker")
        + REASON_CODE.format("no_command_worker", "NoCommandWorker")
        + REASON_CODE.format("no_room", "NoRoom"),
    ),
    # One more: no worker serves a topic (A2).
    (
        "schema Why ",
        REASON.format("NoCapableWorker"),
        "".join(map(REASON.format, ("NoCapableWorker", "NoTopicWorker"))),
    ),
    (
        "schema Why ",
        REASON_CODE.format("no_room", "NoRoom"),
        REASON_CODE.format("no_room", "NoRoom")
        + REASON_CODE.format("no_topic_worker", "NoTopicWorker"),
    ),
    # One more: an agent asked a question.
    (
        "schema Why ",
        REASON.format("Running"),
        "".join(map(REASON.format, ("Running", "AsksQuestion"))),
    ),
    (
        "schema Why ",
        REASON_CODE.format("awaits_admission", "AwaitsAdmission"),
        REASON_CODE.format("asks_question", "AsksQuestion")
        + REASON_CODE.format("awaits_admission", "AwaitsAdmission")
        + REASON_CODE.format("awaits_approval", "AwaitsApproval")
        + REASON_CODE.format("awaits_decision", "AwaitsDecision"),
    ),
]
"""The same of the answer to why, which changed four times."""
OF_THE_BUS = [
    # What a submitter gives for the worker, and what the worker gets of it (A4, A5).
    *(
        (schema, had, f"{had.removesuffix(before)}{added}{before}")
        for schema in ("schema Assignment ", "schema Wanted ")
        for had, before, added in (
            ('"properties": {"args": ', '"args": ', f'"adapter_id": {NULLABLE_TEXT}, '),
            ('"correlation_id": ', '"correlation_id": ', f'"context_ptr": {NULLABLE_TEXT}, '),
        )
    ),
    # What a worker on a bus reports beside its result or error (A9).
    ("schema Result ", '"job": ', f'"execution_ms": {NULLABLE_NUMBER}, "job": '),
    ("schema Result ", '"state": ', f'"result_ptr": {NULLABLE_TEXT}, "state": '),
    ("schema Result ", f'"task": {TEXT}', f'"task": {TEXT}, "worker_id": {NULLABLE_TEXT}'),
]
"""The same of schemas that gained several fields."""
ADDED = {
    "schema AsksQuestion ": "what an agent that runs waits for (D1)",
    "schema AwaitsApproval ": "why a job waits: people have to approve it (A13)",
    "schema AwaitsDecision ": "why a job waits: nobody has decided on it (A13)",
    "schema WaitsForUpload ": "why a command waits: its upload is not finalized (D3)",
    "schema CreatingUpload ": "what creates an upload",
    "schema Finalizing ": "what finalizes an upload",
    "schema UploadView ": "an upload",
    "schema UploadList ": "a page of uploads",
    "schema UploadState ": "what may be done with an upload",
    "/v1/uploads get ": "list uploads (D3)",
    "/v1/uploads post ": "create one",
    "/v1/uploads/{upload} get ": "read one",
    "/v1/uploads/{upload} delete ": "delete one",
    "/v1/uploads/{upload}/finalize post ": "accept what was written",
    "schema NoCommandWorker ": "why a command waits: nobody runs commands",
    "schema NoRoom ": "why a command waits: no host has room",
    "schema NoTopicWorker ": "why a job waits: nobody serves its topic (A2)",
    "schema WantedTopic ": "what a submit by topic takes (A2)",
    "schema WantedCommand ": "what a submit of a command takes (D17)",
    "/v1/jobs/{job} delete ": "the document of commands kills a job so (D7)",
    "schema Output ": "the last lines that a command printed, as one text",
    "schema OutputStream ": "what a command printed to",
    "schema Artifact ": "a file that a command left",
    "schema ArtifactList ": "what a command left in /artifacts",
    "schema SkipReason ": "why something in /artifacts was not kept",
    "schema SkippedArtifact ": "something in /artifacts that was not kept",
    "/v1/jobs/{job}/artifacts get ": "what a command left",
    "/v1/jobs/{job}/artifacts/{name} get ": "a file that a command left",
    "/v1/jobs/{job}/artifacts/{name} head ": "the size and digest of it",
    "/v1/jobs/{job}/output get ": "the document of commands reads a job's output so",
    "/v1/uploads/{upload}/content put ": "the files of jobs, as an archive (D3)",
    "/v1/uploads/{upload}/files/{name} put ": "the files of jobs, one by one (D3)",
    "schema MissingApproval ": "what approvals a job awaits (A13)",
    "schema GivenApproval ": "an approval of a job",
    "schema RequestedApproval ": "a job that people have to approve",
    "schema RequestedApprovals ": "a page of those",
    "schema Approving ": "what an approval takes",
    "schema Denying ": "what a denial takes",
    "schema RecordedDecision ": "what was decided on a job",
    "schema Look ": "how a rule saw a job",
    "schema JobPolicy ": "all that was decided on a job",
    "schema PolicyBookView ": "a policy",
    "schema PolicyEvent ": "when a policy was applied or removed",
    "schema PolicyHistory ": "a list of that",
    "schema WantedPolicy ": "a policy to apply",
    "schema WebhookEvent ": "what a webhook is notified of",
    "/v1/approvals get ": "which jobs await an approval (A13)",
    "/v1/jobs/{job}/approve post ": "approve one",
    "/v1/jobs/{job}/deny post ": "deny one",
    "/v1/jobs/{job}/policy get ": "why a job was allowed or denied",
    "/v1/policy get ": "the rules that jobs are judged by (A13)",
    "/v1/policy post ": "apply others",
    "/v1/policy/history get ": "which were applied",
}
"""Lines that the old document did not have, and why there are more."""
REFERENCE = re.compile(r'"#/components/schemas/([^"]+)"')


async def read(http: httpx.AsyncClient) -> dict[str, Any]:
    """Read the document as a client does."""
    reply = await http.get("/openapi.json")
    assert reply.status_code == 200, reply.text
    document: dict[str, Any] = reply.json()
    return document


async def test_routes_fields_and_codes_are_those_that_clients_know(
    http: httpx.AsyncClient,
) -> None:
    old = GOLDEN.read_text("utf-8")
    assert hashlib.sha256(old.encode()).hexdigest() == OLD_DOCUMENT
    expected = old.splitlines()
    each = [(key, *pair) for key, pair in DEVIATIONS.items()]
    for route, had, has in [*each, *OF_WHY, *OF_THE_BUS, *OF_APPROVALS, *OF_WEBHOOKS]:
        [number] = [number for number, line in enumerate(expected) if line.startswith(route)]
        assert had in expected[number], f"no deviation of {route}any more"
        expected[number] = expected[number].replace(had, has)
    found = written(bare(await read(http))).splitlines()
    added = [line for line in found if line.startswith(tuple(ADDED))]
    assert len(added) == len(ADDED)
    assert [line for line in found if line not in added] == expected


async def test_every_schema_that_is_named_is_there(http: httpx.AsyncClient) -> None:
    document = await read(http)
    schemas = document["components"]["schemas"]
    named = set(REFERENCE.findall(json.dumps(document)))

    assert document["openapi"].startswith("3.1")
    assert named - set(schemas) == set()
    # Two types of one name would both be named by their modules.
    assert [name for name in schemas if "." in name] == []
    assert [name for name, schema in schemas.items() if schema.get("title", name) != name] == []


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda one: f"{one.method} {one.path}")
async def test_every_route_is_described_with_its_problems_and_headers(
    http: httpx.AsyncClient, endpoint: AnyEndpoint
) -> None:
    described = (await read(http))["paths"][endpoint.path][endpoint.method.lower()]
    assert "application/problem+json" in described["responses"]["default"]["content"]
    assert described["description"]
    headers = {one["name"] for one in described["parameters"] if one["in"] == "header"}
    for kind in endpoint.kinds:
        # A body has a length with or without a parameter for it.
        sent = {*layout_of(kind).headers.values(), "X-Request-Id"} - {"Content-Length"}
        assert sent <= headers
        assert ("Holdfast-Tenant" in headers) is kind.for_tenant
