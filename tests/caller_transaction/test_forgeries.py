"""A role that may call holdfast_submit, and nothing else, writes only what the law would write."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import asyncpg
import pytest

from holdfast import Holdfast
from holdfast.errors import LawBroken
from holdfast.flow.recover import sweep
from holdfast.lifecycle.execution_policy import (
    Policy,
    content_key,
    policy_faults,
    policy_key,
    policy_text,
)
from holdfast.lifecycle.payload import digest
from holdfast.lifecycle.record import Actor
from holdfast.lifecycle.states import KeyKind, Link, Role
from holdfast.lifecycle.times import SECOND
from holdfast.ports.models import ClaimRequest, Query
from holdfast.stores.postgres.caller_transaction import enlist_sql, enlist_text
from holdfast.testing.factories import new_job
from tests.support.postgres import PostgresCluster

ELSEWHERE = "01900000-0000-7000-8000-000000000001"


@pytest.fixture
def web_url(postgres_cluster: PostgresCluster, url: str) -> Iterator[str]:
    """The url of a role that has what docs/transactional-submit.md grants, and nothing more."""
    database = url.rpartition("/")[2]
    postgres_cluster.sql(
        "CREATE ROLE web LOGIN; GRANT USAGE ON SCHEMA holdfast TO web;"
        "GRANT EXECUTE ON FUNCTION holdfast.holdfast_submit(jsonb) TO web",
        database,
    )
    yield url.replace("postgres@", "web@")
    postgres_cluster.sql("DROP OWNED BY web CASCADE; DROP ROLE web", database)


@pytest.fixture
async def web(web_url: str) -> AsyncIterator[asyncpg.Connection]:
    """Its connection."""
    connection = await asyncpg.connect(web_url)
    yield connection
    await connection.close()


def asked(**wishes: Any) -> dict[str, Any]:
    """What the function is asked for by an honest caller."""
    return dict(json.loads(enlist_text([new_job(**wishes)])))


async def send(web: asyncpg.Connection, message: dict[str, Any]) -> None:
    async with web.transaction():
        await web.fetchval(enlist_sql("$1"), json.dumps(message))


def with_job(**changes: Any) -> Callable[[], dict[str, Any]]:
    """A job that says something else in its columns."""

    def forge() -> dict[str, Any]:
        message = asked()
        message["jobs"][0] |= changes
        return message

    return forge


def with_data(**changes: Any) -> Callable[[], dict[str, Any]]:
    """A job that says something else in the data of its first event."""

    def forge() -> dict[str, Any]:
        message = asked()
        data = json.loads(message["jobs"][0]["data"]) | changes
        message["jobs"][0]["data"] = json.dumps(data)
        return message

    return forge


def both(**changes: Any) -> Callable[[], dict[str, Any]]:
    """A job whose columns and data agree on something that nobody may have."""

    def forge() -> dict[str, Any]:
        message = asked()
        job = message["jobs"][0]
        job |= changes
        job["data"] = json.dumps(json.loads(job["data"]) | changes)
        return message

    return forge


def with_data_text(text: str) -> Callable[[], dict[str, Any]]:
    return with_job(data=text)


def with_policy(**changes: Any) -> Callable[[], dict[str, Any]]:
    """A job under a policy that is not what its id stands for."""

    def forge() -> dict[str, Any]:
        message = asked(policy=Policy(max_attempts=9, timeout=77 * SECOND))
        message["policies"][0] |= changes
        return message

    return forge


def bad_policy(body: str, **columns: Any) -> Callable[[], dict[str, Any]]:
    """A job under a policy that nobody may have, under the id that it should have."""

    def forge() -> dict[str, Any]:
        message = asked()
        key = content_key(body.encode())
        plain = {"lease": 60 * SECOND, "running_lease": 30 * SECOND, "start_timeout": None}
        message["policies"] = [{"id": key, "body": body, **plain, **columns}]
        job = message["jobs"][0]
        job["policy"] = key
        job["data"] = json.dumps(json.loads(job["data"]) | {"policy": key})
        return message

    return forge


def bad_needs(body: str, key: int | None = None) -> Callable[[], dict[str, Any]]:
    def forge() -> dict[str, Any]:
        message = asked()
        named = content_key(body.encode()) if key is None else key
        message["needs"] = [{"id": named, "body": body}]
        job = message["jobs"][0]
        job["needs"] = named
        job["data"] = json.dumps(json.loads(job["data"]) | {"needs": named})
        return message

    return forge


def key_of_nobody() -> dict[str, Any]:
    key = {"tenant": "acme", "kind": 8, "key": "order-1", "id": ELSEWHERE, "digest": "00" * 16}
    return asked() | {"keys": [key]}


def key_of_another_tenant() -> dict[str, Any]:
    message = asked(dedupe_key="order-1")
    message["keys"][0]["tenant"] = "acme"
    return message


def key_without_a_row() -> dict[str, Any]:
    return asked(dedupe_key="order-1") | {"keys": []}


def key_with_another_digest() -> dict[str, Any]:
    message = asked(dedupe_key="order-1")
    message["keys"][0]["digest"] = "00" * 16
    return message


def key_with_a_short_digest() -> dict[str, Any]:
    message = asked(dedupe_key="order-1")
    message["keys"][0]["digest"] = "00"
    job = message["jobs"][0]
    data = json.loads(job["data"]) | {"content": base64.b64encode(b"\0").decode()}
    job["data"] = json.dumps(data)
    return message


def live_key_without_one() -> dict[str, Any]:
    return both(key_kinds=KeyKind.DEDUPE_LIVE.code)()


def compensation() -> dict[str, Any]:
    there = new_job()
    undoing = new_job(parent_id=there.record.id, link_kind=Link.COMPENSATION)
    return dict(json.loads(enlist_text([there, undoing])))


def parent_of_another_tenant() -> dict[str, Any]:
    there = new_job(tenant="acme")
    child = new_job(parent_id=there.record.id, link_kind=Link.CHILD)
    return dict(json.loads(enlist_text([there, child])))


def body_of(text: str) -> Callable[[], dict[str, Any]]:
    return with_job(body=text, digest=digest(text.encode()).hex())


def both_holds(holds: Any) -> Callable[[], dict[str, Any]]:
    def forge() -> dict[str, Any]:
        forged = with_data(holds=holds)()
        forged["jobs"][0]["held_by"] = json.dumps(holds)
        return forged

    return forge


FORGERIES: dict[str, Callable[[], dict[str, Any]]] = {
    "a task with a version in its name": both(task="charge@2"),
    "a policy that does not exist": lambda: both(policy=12345)() | {"policies": []},
    "needs that do not exist": lambda: both(needs=12345)() | {"needs": []},
    "terms of another policy": with_policy(body=policy_text(Policy(max_attempts=1)).decode()),
    "another lease than the policy's": with_policy(lease=1),
    "another running lease than the policy's": with_policy(running_lease=1),
    "another start timeout than the policy's": with_policy(start_timeout=1),
    "a lease of nothing": bad_policy('{"lease":0}', lease=0),
    "a lease for ever": bad_policy(f'{{"lease":{2**62}}}', lease=2**62),
    "a lease that Python cannot read": bad_policy('{"lease":60000000.0}'),
    "a lease with an exponent": bad_policy('{"lease":6e7}'),
    "terms of another type": bad_policy('{"idempotent":"yes"}'),
    "a backoff that shrinks": bad_policy('{"backoff_factor":0.5}'),
    "an unknown end": bad_policy('{"on_exhausted":"forget"}'),
    "no try at all": bad_policy('{"max_attempts":0}'),
    "terms that are no object": bad_policy("[]"),
    "needs under another id": bad_needs('["gpu"]', key=5),
    "needs that are no list": bad_needs('{"gpu":1}'),
    "needs that are no text": bad_needs("[[1]]"),
    "more needs than a claim compares": bad_needs(json.dumps([str(n) for n in range(101)])),
    "a parent that does not exist": both(parent_id=ELSEWHERE, link_kind=Link.CHILD.code),
    "a parent of another tenant": parent_of_another_tenant,
    "a compensation of somebody's job": compensation,
    "a key of no job": key_of_nobody,
    "a key of another tenant": key_of_another_tenant,
    "a job without the key that it names": key_without_a_row,
    "a key with another digest": key_with_another_digest,
    "a key with a short digest": key_with_a_short_digest,
    "a term of a key that is not there": live_key_without_one,
    "the name of a job that exists": with_job(job_id=ELSEWHERE),
    "an operator": with_job(actor="control:root"),
    "a worker": with_job(actor="worker-1"),
    "nobody": with_job(actor=None),
    "an empty tenant": both(tenant=""),
    "a tenant without end": both(tenant="x" * 201),
    "a reserved task": both(task="holdfast.webhook"),
    "a reserved queue": both(queue="holdfast.webhooks"),
    "a reason without end": with_job(reason="x" * 1001),
    "no time": with_job(run_at=None),
    "a time after the last": with_job(run_at=2**62),
    "a time before all": with_job(run_at=-(2**62)),
    "a deadline after the last": with_job(deadline_at=2**62),
    "no processor": both(cpus=0),
    "a kind that nobody runs": with_job(kind=99),
    "a priority that nobody claims": with_job(priority=99),
    "a state that no job begins in": with_job(state=8),
    "a body that is no JSON": body_of("{"),
    "a body without end": body_of('"' + "x" * 1024 * 1024 + '"'),
    "another body than the digest's": with_job(body='"other"'),
    "no body": with_job(body=None),
    "data of another tenant": with_data(tenant="acme"),
    "data of another task": with_data(task="other"),
    "data of another policy": with_data(policy=1),
    "data that is no object": with_data_text("[]"),
    "data that is no JSON": with_data_text("{"),
    "no data": with_data_text(None),  # type: ignore[arg-type]
    "a number that Python cannot read": with_data(policy=1.5),
    "a label that is no text": with_data(labels={"a": 1}),
    "labels that are no map": with_data(labels=["a"]),
    "labels without end": with_data(env={str(n): "x" * 1000 for n in range(17)}),
    "a trace that is no text": with_data(trace_id=5),
    "an adapter that is no text": with_data(adapter_id=["a"]),
    "an upload without a name": with_data(files_id=""),
    "a hold that the data does not name": with_job(held_by='["ann"]'),
    "a hold that is no list": with_job(held_by="1"),
    "holds that the job is not under": with_data(holds=["ann"]),
    "holds that are no texts": both_holds([1]),
    "holds that are no list": both_holds("ann"),
    "a list of no hold": both_holds([]),
    "more holds than the limit": both_holds([str(n) for n in range(101)]),
    "a rule that is no text": with_data(rule=1),
    "a verdict that is no text": with_data(verdict=["allow"]),
    "asked values that are no map": with_data(asked=["cpus"]),
    "an asked value of another type": with_data(asked={"cpus": [1]}),
    "asked values without end": with_data(asked={"cpus": "x" * 1001}),
}


@pytest.mark.parametrize("name", FORGERIES)
async def test_what_the_law_would_not_write_is_refused_and_leaves_nothing(
    app: Holdfast, web: asyncpg.Connection, name: str
) -> None:
    with pytest.raises((asyncpg.IntegrityConstraintViolationError, asyncpg.DataError)) as refused:
        await send(web, FORGERIES[name]())

    assert refused.value.sqlstate in ("23514", "23503", "23000", "22P02")
    store = await app.store()
    assert (await store.find(Query(limit=5))).jobs == []
    assert await store.dictionary_problems() == []


async def test_recovery_goes_on_for_all_whatever_such_a_role_sends(
    app: Holdfast, web: asyncpg.Connection
) -> None:
    store = await app.store()
    [lost] = await store.submit([new_job(policy=Policy(lease=1, heartbeat=1))])
    await store.claim(ClaimRequest(owner="w", request_id="r", queues=("default",), limit=1))
    for name in ("a policy that does not exist", "a parent that does not exist", "a key of no job"):
        with pytest.raises(asyncpg.IntegrityConstraintViolationError, match="holdfast"):
            await send(web, FORGERIES[name]())

    swept = await sweep(store, Actor(Role.RECONCILER, "r"), jitter=lambda: 1.0)
    assert sum(swept.written.values()) == 1
    assert (await store.get([lost.job.id]))[0].state == "stalled"  # type: ignore[union-attr]


async def test_a_policy_is_the_one_that_was_asked_for_whoever_named_it_first(
    app: Holdfast, web: asyncpg.Connection
) -> None:
    wanted = Policy(max_attempts=7, timeout=60 * SECOND)
    message = asked()
    message["policies"] = [{
        "id": policy_key(wanted), "body": policy_text(Policy(max_attempts=1)).decode(),
        "lease": 1, "running_lease": 1, "start_timeout": None,
    }]  # fmt: skip
    with pytest.raises(asyncpg.CheckViolationError, match="is not what its id stands for"):
        await send(web, message)

    store = await app.store()
    await store.submit([new_job(policy=wanted)])
    [claimed] = await store.claim(
        ClaimRequest(owner="w", request_id="r", queues=("default",), limit=1)
    )
    assert claimed.job.policy == wanted


@pytest.mark.parametrize("isolation", ["read_committed", "repeatable_read"])
async def test_a_parent_that_was_rolled_back_is_told_to_whoever_submits(
    app: Holdfast, url: str, isolation: Any
) -> None:
    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()
    parent = await app.tasks["ship"].submit_in(connection, 1)
    await transaction.rollback()

    kind, told = LawBroken, r"a parent \(.*\) that its tenant does not have"
    # Under a stricter isolation it may be newer than the snapshot: tried again, it will show.
    with pytest.raises(
        kind if isolation == "read_committed" else asyncpg.SerializationError, match=told
    ):
        async with connection.transaction(isolation=isolation):
            await app.tasks["ship"].options(parent=parent).submit_in(connection, 2)
    await connection.close()


POLICIES = [
    Policy(),
    Policy(max_attempts=1, idempotent=False, on_exhausted="fail", letter_on_fail=True),
    Policy(on_silence="time_out", host_recovery=0, compensates=True),
    Policy(on_silence="lose", backoff_first=0, backoff_max=0, backoff_factor=1.0),
    Policy(backoff_factor=1e16, start_timeout=1, timeout=1),
    Policy(backoff_factor=1.25, lease=1, heartbeat=1, max_attempts=1_000_000),
    Policy(lease=10 * 365 * 24 * 3600 * SECOND - 1),
    Policy(lease=10 * 365 * 24 * 3600 * SECOND),
    Policy(max_attempts=1_000_001),
    Policy(max_attempts=0),
    Policy(heartbeat=0),
    Policy(timeout=0),
    Policy(start_timeout=-1),
    Policy(backoff_factor=0.99),
    Policy(backoff_first=-1),
    Policy(on_silence="sleep"),
    Policy(on_exhausted=""),
]


@pytest.mark.parametrize("policy", POLICIES, ids=lambda one: policy_text(one).decode())
async def test_the_function_judges_a_policy_as_the_law_does(url: str, policy: Policy) -> None:
    connection = await asyncpg.connect(url, server_settings={"search_path": "holdfast"})
    row = (
        policy_key(policy), policy_text(policy).decode(), policy.lease, policy.running_lease,
        policy.start_timeout,
    )  # fmt: skip
    check = "SELECT holdfast_check_policy(ROW($1::bigint, $2::text, $3::bigint, $4::bigint, "
    try:
        await connection.fetchval(f"{check} $5::bigint)::policies)", *row)
        judged = True
    except asyncpg.CheckViolationError:
        judged = False
    await connection.close()
    assert judged is (policy_faults(policy, bounded=False) == [])
