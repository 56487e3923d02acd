"""Query strings: what a route lists it takes, however a person writes numbers, ids and dates."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import httpx
import pytest
from msgspec import Struct
from starlette.datastructures import QueryParams

from holdfast.errors import ValidationError
from holdfast.http.endpoints import ENDPOINTS, openapi
from holdfast.http.query_string import read_query

ID = "0190aaaa-bbbb-7ccc-8ddd-eeeeeeeeeeee"
HEADERS = {"X-Request-Id": "r", "Holdfast-Tenant": "default", "last-event-id": "1"}
NAMED = {
    "label": "a=b",
    "tenant": "default",
    "parent": "j",
    "before": UUID(ID).hex,
    "after": "1",
    "digest": "0" * 64,
}
"""Values that a schema does not tell."""
CURSORS = {
    "/v1/events": {"after": "start"},
    "/v1/approvals": {"after": f"approval:rule/1/0|{ID}"},
}
"""Cursors of lists that have their own."""
QUERIED = sorted(one.path for one in ENDPOINTS if one.method == "GET" and one.kinds[0].scope)


def sample(name: str, schema: dict[str, Any]) -> str:
    """Make a value that a parameter may have."""
    if "$ref" in schema:
        schema = openapi()["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    found = [schema, *schema.get("anyOf", ()), schema.get("items", {})]
    for one in found:
        if "$ref" in one and one is not schema:
            return sample(name, one)
        if "enum" in one:
            return str(one["enum"][0])
        if one.get("format") == "date-time":
            return "2024-01-01T00:00:00Z"
        if one.get("type") in ("integer", "number"):
            return str(one.get("minimum", 1))
    return NAMED.get(name, "some")


@pytest.mark.parametrize("path", QUERIED)
async def test_a_route_takes_all_parameters_that_it_lists_together(
    http: httpx.AsyncClient, path: str
) -> None:
    await http.post("/v1/jobs", json={"task": "t", "job_id": "j"})
    listed = openapi()["paths"][path]["get"]["parameters"]
    query = {
        one["name"]: sample(one["name"], one["schema"]) for one in listed if one["in"] == "query"
    }
    query |= {name: value for name, value in CURSORS.get(path, {}).items() if name in query}
    headers = {one["name"]: HEADERS[one["name"]] for one in listed if one["in"] == "header"}
    url = path.replace("{job}", "j").replace("{webhook}", "w").replace("{upload}", "u")
    url = url.replace("{name}", "n")
    reply = await http.get(url, params=query, headers=headers)
    absent = {
        "/v1/dead-letters/{job}": 409,
        "/v1/jobs/{job}/artifacts": 409,
        "/v1/jobs/{job}/artifacts/{name}": 409,
        "/v1/jobs/{job}/output": 409,
        "/v1/policy": 404,
        "/v1/uploads/{upload}": 404,
        "/v1/webhooks/{webhook}": 404,
    }
    assert reply.status_code in (200, 202, absent.get(path)), reply.text


def test_only_a_get_takes_a_query() -> None:
    for methods in openapi()["paths"].values():
        for method, described in methods.items():
            places = {one["in"] for one in described["parameters"]}
            assert method == "get" or "query" not in places


@pytest.mark.parametrize("dialect", ["A", "B", "C", "D", "E"])
async def test_a_dialect_tells_the_whole_history_whatever_page_is_asked_for(
    http: httpx.AsyncClient, dialect: str
) -> None:
    await http.post("/v1/jobs", json={"task": "t", "job_id": "j"})
    path = f"/v1/jobs/j/history?dialect={dialect}"
    whole = await http.get(path)
    page = await http.get(f"{path}&after=1&limit=10")
    assert (page.status_code, page.json()) == (200, whole.json())
    for wrong, field in (("after=x", "after"), ("limit=0", "limit"), ("page=1", "page")):
        refused = await http.get(f"{path}&{wrong}")
        assert (refused.status_code, refused.json()["field"]) == (422, field)


class Needy(Struct):
    """A query that cannot do without a name."""

    name: str


def test_a_parameter_that_is_missing_is_named() -> None:
    with pytest.raises(ValidationError, match="missing required field `name`") as refused:
        read_query(QueryParams("other=1"), Needy)
    assert refused.value.field == "name"


@pytest.mark.parametrize(
    "query",
    [
        "limit=05",
        "limit=%2B5",
        "limit=%205%20",
        "limit=1_0",
        "limit=5.0",
        "before=%7B" + ID + "%7D",
        "before=urn:uuid:" + ID,
        "before=" + ID.replace("-", ""),
        "before=" + ID.upper(),
        "created_from=2024-01-01T00:00Z",
        "created_from=2024-01-01T00:00:00,5Z",
        "created_from=2024-01-01_00:00:00Z",
        "created_from=2024-01-01t00:00:00z",
        "created_from=2024-01-01%2000:00:00.123456789%2B0200",
        "created_from=1700000000",
        "created_from=1700000000.5",
        "created_from=-1",
        "queue=null",
        "queue=05",
    ],
)
async def test_a_value_may_be_written_in_any_usual_way(http: httpx.AsyncClient, query: str) -> None:
    reply = await http.get(f"/v1/jobs?{query}")
    assert reply.status_code == 200, reply.text


@pytest.mark.parametrize(
    "query",
    [
        *(f"limit={text}" for text in ("1e2", "0x5", "5.5", "_5", "1__0", "true", "", "null", "٣")),
        "limit=" + "1" * 5000,
        *(f"before={text}" for text in ("{" + ID, "x", "", "null")),
        *(f"created_from=2024-01-01{text}" for text in ("", "T00:00:00", "T24:00:00Z", "T00Z")),
        *(f"created_from=2024-01-01T00:00{text}" for text in ("3Z", ":003Z", ".5Z", "Zx")),
        *(f"created_from={text}" for text in ("1e9", "now", "", "null", "9" * 30)),
        "letter=null",
        "state=QUEUED",
    ],
)
async def test_a_value_that_is_none_is_refused_with_its_name(
    http: httpx.AsyncClient, query: str
) -> None:
    reply = await http.get(f"/v1/jobs?{query}")
    assert (reply.status_code, reply.json()["code"]) == (422, "validation_failed"), reply.text
    assert reply.json()["field"].startswith(query.partition("=")[0])


@pytest.mark.parametrize(
    ("text", "status"), [(".01", 200), ("%200", 200), ("1e-3", 200), ("nan", 422), ("٣", 422)]
)
async def test_a_wait_may_have_a_fraction(http: httpx.AsyncClient, text: str, status: int) -> None:
    await http.post("/v1/jobs", json={"task": "t", "job_id": "j"})
    assert (await http.get(f"/v1/jobs/j?wait={text}")).status_code == status


async def test_milliseconds_since_1970_are_told_by_their_size(http: httpx.AsyncClient) -> None:
    await http.post("/v1/jobs", json={"task": "t"})
    for text, found in (("1700000000000", 1), ("1700000000", 1), ("99999999999999", 0)):
        reply = await http.get(f"/v1/jobs?created_from={text}")
        assert len(reply.json()["jobs"]) == found
