"""How many queues and sets of needs a tenant's jobs may have."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import BadData
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.states import KeyKind
from holdfast.ports.models import Committed, Limits, Rejected, SubmitRefused, Submitted
from holdfast.ports.store import Store
from holdfast.testing.factories import fresh, new_job, owner_of
from holdfast.testing.store_actions import change, running_job, stored, submit_one


async def outcomes(store: Store, *options: dict[str, Any]) -> list[str]:
    """Submit jobs together; return `created`, or the code of each refusal."""
    found = await store.submit([new_job(**one) for one in options])
    return [one.code if isinstance(one, SubmitRefused) else "created" for one in found]


class LimitContract:
    """Names are limited for each tenant; names that exist can be used at the limit."""

    async def test_limits_are_kept_for_all(self, store: Store) -> None:
        assert await store.limits() == Limits()
        await store.set_limits(Limits(queues=7, needs=3, signals=5))

        assert await store.limits() == Limits(queues=7, needs=3, signals=5)

    @pytest.mark.parametrize(
        "limits", [Limits(queues=0), Limits(needs=-1), Limits(signals=0), Limits(signals=10**6)]
    )
    async def test_a_limit_out_of_bounds_is_refused(self, store: Store, limits: Limits) -> None:
        with pytest.raises(BadData):
            await store.set_limits(limits)

    async def test_a_tenant_gets_no_more_queues_than_it_may_have(self, store: Store) -> None:
        await store.set_limits(Limits(queues=2))
        tenant = fresh("tenant")
        a, b, c = ({"tenant": tenant, "queue": queue} for queue in "abc")

        assert await outcomes(store, a, b, c, a) == [
            "created", "created", "too_many_names", "created",
        ]  # fmt: skip
        # It can use the names that it has, and other tenants are not concerned.
        assert await outcomes(store, c, b) == ["too_many_names", "created"]
        assert await outcomes(store, c | {"tenant": fresh("tenant")}) == ["created"]

    async def test_a_tenant_gets_no_more_sets_of_needs_than_it_may_have(self, store: Store) -> None:
        await store.set_limits(Limits(needs=1))
        tenant = fresh("tenant")
        gpu, both, none = (
            {"tenant": tenant, "needs": frozenset(needs)}
            for needs in (("gpu",), ("gpu", "cpu"), ())
        )

        assert await outcomes(store, none, gpu) == ["created", "created"]
        assert await outcomes(store, both, none, gpu) == [
            "too_many_names", "created", "created",
        ]  # fmt: skip

    async def test_a_refusal_names_what_is_too_many_and_what_to_do(self, store: Store) -> None:
        await store.set_limits(Limits(queues=1))
        tenant = fresh("tenant")
        await submit_one(store, tenant=tenant, queue="kept")
        [refused] = await store.submit([new_job(tenant=tenant, queue="extra")])

        assert isinstance(refused, SubmitRefused)
        assert tenant in refused.message
        assert "'extra'" in refused.message
        assert "holdfast limits --queues" in refused.message

    async def test_a_repeated_submit_returns_its_job_whatever_new_name_it_brings(
        self, store: Store
    ) -> None:
        await store.set_limits(Limits(queues=1, needs=1))
        tenant = fresh("tenant")
        first = await submit_one(store, tenant=tenant, queue="a", dedupe_key="k")
        options = {"tenant": tenant, "queue": "b", "needs": frozenset({"gpu"})}
        again, other, third = await store.submit(
            [new_job(dedupe_key=key, **options) for key in ("k", "l", "l")]
        )

        assert again == Submitted(first, created=False)
        for one in (other, third):
            assert isinstance(one, SubmitRefused)
            assert one.code == "too_many_names"
        # A refused job keeps no key.
        assert await store.look_up(tenant, KeyKind.DEDUPE, "l") is None
        await submit_one(store, tenant=tenant, queue="a", dedupe_key="l")

    @pytest.mark.parametrize("key", [None, "k"])
    async def test_jobs_that_a_change_submits_are_limited_too(
        self, store: Store, key: str | None
    ) -> None:
        await store.set_limits(Limits(queues=1))
        tenant = fresh("tenant")
        job = await running_job(store, tenant=tenant, queue="a")
        for queue, kind in (("b", Rejected), ("a", Committed)):
            child = new_job(tenant=tenant, queue=queue, dedupe_key=key)
            step = c.Step(actor=owner_of(job), name="spawn", body=b"1", submits=(child,))
            [outcome] = await store.commit([change(job, step)])
            assert isinstance(outcome, kind), outcome
            if isinstance(outcome, Rejected):
                assert outcome.code == "too_many_names"
                assert await stored(store, job.id) == job

    async def test_a_set_of_needs_that_was_just_named_is_not_forgotten(self, store: Store) -> None:
        job = await submit_one(store, needs=frozenset({"gpu"}))

        assert await store.forget_unused() == 0
        assert (await store.get([job.id]))[0] == job
