"""The one door of commands: what is stored, what is limited, what is refused (D1, D2, D9, D17)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.errors import BadData
from holdfast.flow import submit_command
from holdfast.flow.submit import JobBuilder
from holdfast.flow.submit_command import Allowance, WantedCommand, decide_command, limits_note
from holdfast.ids import mint_id
from holdfast.lifecycle.payload import decode_body
from holdfast.lifecycle.record import NewJob
from holdfast.lifecycle.states import Kind
from holdfast.lifecycle.times import SECOND
from holdfast.ports.models import SubmitRefused, Submitted
from holdfast.ports.store import Store
from holdfast.testing.factories import GATEWAY
from tests.support.command_table import AGENT, CODES, GRANTED, KEPT, REFUSED, WORKER, Case

BUILDER = JobBuilder(actor=GATEWAY)
MINUTE = 60 * SECOND


def decide(**request: Any) -> NewJob:
    return decide_command(BUILDER, WantedCommand(**request), tenant="default")


def kept(job: NewJob, field: str) -> Any:
    """Return what a job keeps of a field."""
    if field == "timeout_minutes":
        assert job.record.policy.timeout is not None
        return job.record.policy.timeout // MINUTE
    if field in GRANTED:
        name, unit = GRANTED[field]
        return getattr(job.record, name) // unit
    return decode_body(job.event.body).get(field)


@pytest.mark.req("D1", "D2", "D17")
@pytest.mark.parametrize("case", KEPT, ids=lambda case: case.name)
def test_the_door_keeps_what_is_allowed_and_limits_what_is_too_much(case: Case) -> None:
    job = decide(**case.request)
    assert kept(job, case.field) == case.kept
    if case.kept != case.value:
        # What was asked for stays visible in the first event.
        assert decode_body(job.event.body)["asked"] == {case.field: case.value}
        assert str(case.value) in (limits_note(WantedCommand(**case.request)) or "")


@pytest.mark.req("D1", "D2", "D9", "D10", "D17")
@pytest.mark.parametrize(
    "case", [case for case in REFUSED if case.field != "retries"], ids=lambda case: case.name
)
def test_the_door_refuses_the_rest_and_names_the_field(case: Case) -> None:
    with pytest.raises(BadData) as caught:
        decide(**case.request)
    assert caught.value.field == case.field
    code = str(case.code)
    assert caught.value.code in CODES.get(code, {code})


@pytest.mark.req("D2")
@pytest.mark.parametrize(("base", "minutes"), [(WORKER, 30), (AGENT, 60)], ids=["worker", "agent"])
def test_what_is_not_asked_for_has_its_default(base: dict[str, Any], minutes: int) -> None:
    job = decide(**base)
    assert (job.record.cpus, job.record.memory_mb) == (2, 4096)
    assert job.record.policy.timeout == minutes * MINUTE
    assert "asked" not in decode_body(job.event.body)
    assert limits_note(WantedCommand(**base)) is None


@pytest.mark.req("D1", "D9")
def test_a_command_has_a_kind_a_queue_and_terms_of_its_own() -> None:
    worker, agent = decide(**WORKER).record, decide(**AGENT).record
    assert (worker.kind, worker.task, worker.queue) == (Kind.COMMAND, "worker", "commands")
    assert (agent.kind, agent.task, agent.queue) == (Kind.AGENT, "agent", "agents")
    for job in (worker, agent):
        policy = job.policy
        assert (policy.max_attempts, policy.idempotent) == (1, False)
        assert (policy.on_silence, policy.on_exhausted) == ("lose", "fail")
        assert (policy.letter_on_fail, policy.start_timeout) == (False, 10 * MINUTE)
    assert worker.needs == {"command"}
    # Its profile, where it names none.
    assert agent.needs == {"command", "agent:default"}


def test_a_runner_that_is_insisted_on_is_a_need_beside_others() -> None:
    job = decide(**WORKER, runner="sandbox", needs=("gpu",))
    assert job.record.needs == {"command", "runner:sandbox", "gpu"}


def test_a_command_that_names_an_image_needs_a_runner_that_has_images() -> None:
    assert decide(**WORKER, image="busybox").record.needs == {"command", "runner:podman"}
    assert decide(**WORKER, image="busybox", runner="podman").record.needs == {
        "command",
        "runner:podman",
    }


def test_a_trace_goes_into_the_environment() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    job = decide(**WORKER, traceparent=trace, env={"LANG": "C"})
    assert job.event.created is not None
    assert job.event.created.env == {"LANG": "C", "traceparent": trace}


class TestARepeat:
    """A key holds for what was asked, whatever was granted."""

    def digest(self, **request: Any) -> bytes:
        [key] = decide(**WORKER, job_id="build-7", **request).keys
        assert key.digest is not None
        return key.digest

    @pytest.mark.req("D2")
    def test_is_the_same_request_after_a_limit_was_changed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = self.digest(cpus=9), self.digest()
        allowed = submit_command.ALLOWANCES["worker"]
        monkeypatch.setitem(allowed, "cpus", Allowance(4, 16))
        assert decide(**WORKER, cpus=9).record.cpus == 9
        assert (self.digest(cpus=9), self.digest()) == before

    def test_is_another_request_if_it_asks_for_something_else(self) -> None:
        asked: list[dict[str, Any]] = [
            {}, {"cpus": 2}, {"cpus": 9}, {"cpus": 10}, {"memory_gb": 4}, {"timeout_minutes": 30},
            {"timeout_minutes": 121}, {"image": "a"}, {"runner": "podman"}, {"env": {"A": "1"}},
            {"queue": "slow"}, {"labels": {"a": "b"}}, {"needs": ("gpu",)}, {"deadline": "5m"},
        ]  # fmt: skip
        digests = [self.digest(**one) for one in asked]
        assert len(set(digests)) == len(digests)

    @pytest.mark.req("D10", "D11")
    async def test_by_one_client_job_id_in_any_case_returns_the_first_job(
        self, either_store: Store
    ) -> None:
        key = "550e8400-e29b-41d4-a716-446655440000"
        first, *others = [
            decide(**WORKER | more)
            for more in (
                {"client_job_id": key},
                {"client_job_id": key.upper()},
                {"client_job_id": key, "command": "another"},
            )
        ]
        [made] = await either_store.submit([first])
        assert isinstance(made, Submitted)
        assert made.created
        for outcome in await either_store.submit(others):
            assert isinstance(outcome, Submitted)
            assert (outcome.created, outcome.job.id) == (False, made.job.id)

    async def test_by_one_job_id_with_another_command_is_refused(self, either_store: Store) -> None:
        jobs = [decide(**WORKER | {"job_id": "b", "command": one}) for one in ("x", "x", "y")]
        first, again, other = [(await either_store.submit([job]))[0] for job in jobs]
        assert isinstance(first, Submitted)
        assert isinstance(again, Submitted)
        assert again.job.id == first.job.id
        assert isinstance(other, SubmitRefused)
        assert other.code == "key_conflict"


def test_a_submission_that_was_built_reads_back_as_it_was_written() -> None:
    body = decide(**WORKER | {"command": None, "argv": ("make", "-j4", "")}).event.body
    assert body is not None
    assert msgspec.json.decode(body) == {"type": "worker", "argv": ["make", "-j4", ""]}


def test_a_child_of_a_job_is_linked_to_it() -> None:
    parent = mint_id()
    job = decide_command(BUILDER, WantedCommand(**AGENT), tenant="acme", parent_id=parent)
    assert (job.record.parent_id, job.record.tenant) == (parent, "acme")
