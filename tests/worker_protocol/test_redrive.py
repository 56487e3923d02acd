"""A job that was redriven, over the worker protocol: the worker is given what the dead one did."""

from __future__ import annotations

import httpx
import pytest

from holdfast.lifecycle.record import MISMATCH
from tests.worker_protocol.hand import Hand, Json, events, read, submitted

NO_STOCK = {"message": "out of stock"}


async def failed_after_steps(http: httpx.AsyncClient, hand: Hand, **wishes: object) -> Json:
    """Have a job that did one step, began another, and failed for good."""
    await submitted(http, **wishes)
    job = await hand.started()
    await hand.say(job, "step", name="charge", result={"receipt": 7})
    await hand.say(job, "step", name="ship", begun=True)
    answer = await hand.say(job, "fail", error=NO_STOCK, kind="permanent")
    assert answer["state"] == "failed"
    return job


async def redriven(http: httpx.AsyncClient, job: Json, **how: object) -> Json:
    reply = await http.post(f"/v1/dead-letters/{job['id']}/redrive", json=how)
    assert reply.status_code == 200, reply.text
    told: Json = reply.json()
    return told


async def test_a_redriven_job_recalls_the_steps_of_the_dead_one_in_its_first_attempt(
    http: httpx.AsyncClient, hand: Hand
) -> None:
    dead = await failed_after_steps(http, hand)
    assert (dead["recall"], dead["lineage"]) == (False, dead["internal_id"])
    new = await redriven(http, dead)
    job = await hand.claim_one()
    assert job["id"] == new["id"]
    assert (job["attempt"], job["recall"], job["lineage"]) == (1, True, dead["internal_id"])

    recalled = await hand.ask("recall", internal_id=job["internal_id"], attempt=1)
    assert [
        (one["kind"], one["name"], one["use"], one["result"], one["begun"])
        for one in recalled["steps"]
    ] == [("step", "charge", 1, {"receipt": 7}, 0), ("step", "ship", 1, None, 1)]


async def test_a_redrive_from_the_start_recalls_nothing_and_keeps_its_lineage(
    http: httpx.AsyncClient, hand: Hand
) -> None:
    dead = await failed_after_steps(http, hand)
    await redriven(http, dead, from_start=True)
    job = await hand.claim_one()
    assert (job["recall"], job["lineage"]) == (False, dead["internal_id"])
    assert await hand.ask("recall", internal_id=job["internal_id"], attempt=1) == {"steps": []}


async def test_many_letters_are_redriven_from_the_start_by_one_request(
    http: httpx.AsyncClient, hand: Hand
) -> None:
    dead = await failed_after_steps(http, hand, policy={"letter_on_fail": True})
    reply = await http.post("/v1/dead-letters/redrive", json={"from_start": True})
    assert reply.json()["done"] == 1
    job = await hand.claim_one()
    assert (job["recall"], job["lineage"]) == (False, dead["internal_id"])


@pytest.mark.parametrize("from_start", [True, False])
async def test_a_request_id_stands_for_one_way_to_redrive(
    http: httpx.AsyncClient, hand: Hand, from_start: bool
) -> None:
    dead = await failed_after_steps(http, hand)
    path, key = f"/v1/dead-letters/{dead['id']}/redrive", {"idempotency-key": "ticket-1"}
    said = {"from_start": from_start}
    first = await http.post(path, json=said, headers=key)
    again = await http.post(path, json=said, headers=key)
    assert first.json()["id"] == again.json()["id"]
    other = await http.post(path, json={"from_start": not from_start}, headers=key)
    assert other.json()["code"] == "request_id_reused"


async def test_a_worker_whose_code_lacks_a_recorded_step_parks_its_job(
    http: httpx.AsyncClient, hand: Hand
) -> None:
    await submitted(http)
    job = await hand.started()
    trouble = {
        "message": "step 'charge' is recorded, and not in this code",
        "code": "step_mismatch",
    }
    answer = await hand.say(job, "fail", error=trouble)
    assert (answer["accepted"], answer["held"], answer["state"]) == (True, False, "waiting")
    assert (await hand.say(job, "fail", error=trouble))["repeated"], "its reply may be lost"
    told = await read(http, job)
    assert (told["wait_for"], told["failures"]) == (MISMATCH, 0)
    why = (await http.get(f"/v1/jobs/{job['id']}/why")).json()["why"]
    assert why["reason"]["code"] == "step_mismatch"

    reply = await http.post(f"/v1/jobs/{job['id']}/signal", json={"name": MISMATCH})
    assert reply.status_code == 200, reply.text
    again = await hand.claim_one()
    assert (again["id"], again["attempt"]) == (job["id"], 2)
    assert (await hand.ask("recall", internal_id=again["internal_id"], attempt=2))["steps"] == []
    assert "wait_completed" in await events(http, job)
