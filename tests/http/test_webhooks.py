"""Webhooks over HTTP: made, listed, read and removed by those who have a say over them."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from holdfast.auth.authorization import Caller, TokenRole
from holdfast.http.router import Application

Call = Callable[[str | None], httpx.AsyncClient]
HOOK = {"url": "https://hooks.example/one?x=1"}


async def test_a_webhook_is_made_listed_read_and_removed(call: Call) -> None:
    mine = call("operator@mine")
    made = await mine.post("/v1/webhooks", json=HOOK | {"states": ["failed"], "queue": "q"})
    assert made.status_code == 201
    assert made.headers["cache-control"] == "no-store"
    assert made.json()["secret"].startswith("whsec_")
    about = made.json()["about"]
    assert about["url"] == HOOK["url"]
    assert (about["tenant"], about["states"], about["queue"]) == ("mine", ["failed"], "q")
    assert about["created_by"] == "control:operator-of-mine"

    listed = (await mine.get("/v1/webhooks")).json()
    assert listed == {"webhooks": [about], "next": None}
    one = f"/v1/webhooks/{about['id']}"
    assert (await mine.get(one)).json() == about
    assert made.json()["secret"] not in (await mine.get(one)).text
    removed = (await mine.delete(one)).json()
    assert removed["removed_by"] == "control:operator-of-mine"
    assert (await mine.get("/v1/webhooks")).json()["webhooks"] == []
    assert (await mine.delete(one)).json() == removed


async def test_a_webhook_of_another_tenant_is_not_there(call: Call) -> None:
    made = (await call("operator@mine").post("/v1/webhooks", json=HOOK)).json()
    theirs = call("admin@theirs")
    one = f"/v1/webhooks/{made['about']['id']}"
    for reply in (await theirs.get(one), await theirs.delete(one), await theirs.get(one + "x")):
        assert (reply.status_code, reply.json()["code"]) == (404, "no_such_webhook")
    assert (await theirs.get("/v1/webhooks")).json()["webhooks"] == []
    foreign = await theirs.post("/v1/webhooks", json=HOOK | {"tenant": "mine"})
    assert foreign.status_code == 422
    assert (await call("operator@mine").get(one)).json()["removed_at"] is None


async def test_whoever_acts_for_all_says_for_whom(http: httpx.AsyncClient) -> None:
    made = (await http.post("/v1/webhooks", json=HOOK | {"tenant": "theirs"})).json()
    assert made["about"]["tenant"] == "theirs"
    assert (await http.post("/v1/webhooks", json=HOOK)).json()["about"]["tenant"] == "default"
    assert len((await http.get("/v1/webhooks")).json()["webhooks"]) == 2


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        pytest.param({"url": "ftp://a/"}, "bad_data", "url", id="another protocol"),
        pytest.param({"url": "https://u:p@a/"}, "bad_data", "url", id="a password"),
        pytest.param({"url": "http://127.0.0.1/"}, "address_blocked", "url", id="this machine"),
        pytest.param({"url": "http://[::1]:80/"}, "address_blocked", "url", id="this one again"),
        pytest.param({"url": "http://169.254.169.254/"}, "address_blocked", "url", id="metadata"),
        pytest.param({"url": "https://a/\n"}, "bad_data", "url", id="a line end"),
        pytest.param(HOOK | {"states": ["running"]}, "bad_data", "states", id="no end"),
        pytest.param(HOOK | {"states": []}, "bad_data", "states", id="no states"),
        pytest.param(HOOK | {"states": ["gone"]}, "validation_failed", "states[0]", id="no state"),
        pytest.param(HOOK | {"queue": ""}, "bad_data", "queue", id="no queue"),
        pytest.param(HOOK | {"task": "t" * 201}, "bad_data", "task", id="a long task"),
        pytest.param(HOOK | {"tenant": "a\0b"}, "bad_data", "tenant", id="a NUL in the tenant"),
        pytest.param(HOOK | {"tenant": "x" * 201}, "bad_data", "tenant", id="a long tenant"),
        pytest.param(HOOK | {"id": "a b"}, "bad_data", "id", id="a bad id"),
        pytest.param(HOOK | {"secret": "me"}, "validation_failed", "secret", id="one's own secret"),
        pytest.param({}, "validation_failed", "url", id="nothing"),
    ],
)
async def test_an_unfit_webhook_is_refused_by_name(
    http: httpx.AsyncClient, body: dict[str, object], code: str, field: str
) -> None:
    reply = await http.post("/v1/webhooks", json=body)
    assert (reply.status_code, reply.json()["code"]) == (422, code), reply.text
    assert reply.json().get("field") == f"$.{field}"
    assert (await http.get("/v1/webhooks")).json()["webhooks"] == []


async def test_an_id_of_ones_own_makes_a_repetition_harmless(call: Call) -> None:
    mine = call("operator@mine")
    first = await mine.post("/v1/webhooks", json=HOOK | {"id": "billing1"})
    again = await mine.post("/v1/webhooks", json=HOOK | {"id": "billing1"})
    assert (first.status_code, first.json()["created"]) == (201, True)
    assert (again.status_code, again.json()["created"]) == (200, False)
    assert (again.json()["about"], again.json()["secret"]) == (first.json()["about"], None)
    assert "whsec_" not in again.text
    other = await mine.post("/v1/webhooks", json={"url": "https://b/", "id": "billing1"})
    assert (other.status_code, other.json()["code"]) == (409, "key_conflict")
    assert "whsec_" not in other.text
    assert len((await mine.get("/v1/webhooks")).json()["webhooks"]) == 1


async def test_an_id_of_ones_own_tells_nobody_that_others_have_it(
    call: Call, http: httpx.AsyncClient
) -> None:
    mine, theirs = call("operator@mine"), call("operator@theirs")
    one, wanted = "/v1/webhooks/billing1", HOOK | {"id": "billing1"}
    made = [(await who.post("/v1/webhooks", json=wanted)).json() for who in (mine, theirs)]
    assert [reply["about"]["tenant"] for reply in made] == ["mine", "theirs"]
    assert made[0]["secret"] != made[1]["secret"]

    unsaid = await http.delete(one)
    assert (unsaid.status_code, unsaid.json()["code"]) == (422, "bad_data")
    assert "name the tenant" in unsaid.json()["detail"]
    said = await http.get(one, headers={"holdfast-tenant": "theirs"})
    assert said.json() == made[1]["about"]
    assert (await theirs.delete(one)).json()["tenant"] == "theirs"
    assert (await mine.get(one)).json() == made[0]["about"]


async def test_pages_of_all_tenants_leave_out_none_of_the_same_id(http: httpx.AsyncClient) -> None:
    for tenant in ("a", "線", "c"):
        await http.post("/v1/webhooks", json=HOOK | {"id": "one", "tenant": tenant})
    told: list[str] = []
    query = {"limit": "1"}
    while True:
        page = (await http.get("/v1/webhooks", params=query)).json()
        told += [hook["tenant"] for hook in page["webhooks"]]
        if page["next"] is None:
            break
        query["before"] = page["next"]
    assert told == ["線", "c", "a"]
    for bad in ("one", "one.____", "one.AAAA", "a b"):
        assert (await http.get("/v1/webhooks", params={"before": bad})).status_code == 422, bad


async def test_webhooks_are_listed_in_pages(http: httpx.AsyncClient) -> None:
    ids = [(await http.post("/v1/webhooks", json=HOOK)).json()["about"]["id"] for _ in range(3)]
    first = (await http.get("/v1/webhooks", params={"limit": 2})).json()
    assert [one["id"] for one in first["webhooks"]] == ids[:0:-1]
    rest = (await http.get("/v1/webhooks", params={"before": first["next"]})).json()
    assert ([one["id"] for one in rest["webhooks"]], rest["next"]) == (ids[:1], None)


async def test_a_tenant_has_no_more_than_so_many(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.webhooks.registry.LIMIT", 2)
    for number in range(2):
        await http.post("/v1/webhooks", json=HOOK | {"id": f"n{number}"})
    third = await http.post("/v1/webhooks", json=HOOK)
    assert third.status_code == 422
    assert "remove one first" in third.json()["detail"]
    assert (await http.post("/v1/webhooks", json=HOOK | {"id": "n0"})).status_code == 200
    other = await http.post("/v1/webhooks", json=HOOK | {"tenant": "other"})
    assert other.status_code == 201


class OfQueues:
    """Lets everybody in with a token for one queue."""

    async def caller(self, authorization: str | None) -> Caller:
        """Give that token."""
        del authorization
        return Caller(
            name="q", token="q", role=TokenRole.OPERATOR, tenant="mine", queues=frozenset({"mails"})
        )


async def test_a_token_for_some_queues_has_a_say_over_these_webhooks_alone(
    call: Call, server: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    everything = (await call("operator@mine").post("/v1/webhooks", json=HOOK)).json()["about"]
    monkeypatch.setattr(type(server.state.authenticator), "caller", OfQueues.caller)
    bound = call(None)
    assert (await bound.post("/v1/webhooks", json=HOOK)).status_code == 403
    assert (await bound.post("/v1/webhooks", json=HOOK | {"queue": "other"})).status_code == 403
    assert (await bound.post("/v1/webhooks", json=HOOK | {"queue": "mails"})).status_code == 201
    listed = (await bound.get("/v1/webhooks")).json()["webhooks"]
    assert [one["queue"] for one in listed] == ["mails"]
    assert (await bound.delete(f"/v1/webhooks/{everything['id']}")).status_code == 404


async def test_a_page_for_some_queues_is_full_and_goes_on_after_its_own_last_one(
    call: Call, server: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    everybodys = call("operator@mine")
    for number in range(6):
        queue = "mails" if number % 3 == 0 else "other"
        wanted = HOOK | {"id": f"n{number}", "queue": queue}
        assert (await everybodys.post("/v1/webhooks", json=wanted)).status_code == 201
    monkeypatch.setattr(type(server.state.authenticator), "caller", OfQueues.caller)
    monkeypatch.setattr("holdfast.webhooks.registry.READ_AT_ONCE", 2)
    bound = call(None)
    first = (await bound.get("/v1/webhooks", params={"limit": 1})).json()
    assert ([one["id"] for one in first["webhooks"]], first["next"]) == (["n3"], "n3")
    rest = (await bound.get("/v1/webhooks", params={"limit": 1, "before": "n3"})).json()
    assert ([one["id"] for one in rest["webhooks"]], rest["next"]) == (["n0"], None)
    both = (await bound.get("/v1/webhooks", params={"limit": 2})).json()
    assert ([one["id"] for one in both["webhooks"]], both["next"]) == (["n3", "n0"], None)
