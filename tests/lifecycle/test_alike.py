"""Jobs alike: what one decision stands for is what deciding each job by itself gives."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.errors import BadData
from holdfast.lifecycle.alike import AlikeJobs, gather_alike, make_alike, may_be_alike
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.payload import encode_body
from holdfast.lifecycle.record import JobId, NewJob
from holdfast.lifecycle.states import Kind, Link, Priority
from holdfast.lifecycle.submit import submit
from holdfast.lifecycle.times import NOW, SECOND, After
from tests.lifecycle.histories import GATEWAY, submission

OTHER = JobId(UUID(int=7))
TERMS: dict[str, st.SearchStrategy[Any]] = {
    "task": st.sampled_from(["resize", "ship"]),
    "task_version": st.sampled_from([None, "2"]),
    "tenant": st.sampled_from(["default", "acme"]),
    "kind": st.sampled_from([Kind.FUNCTION, Kind.COMMAND]),
    "queue": st.sampled_from(["default", "slow"]),
    "priority": st.sampled_from([Priority.INTERACTIVE, Priority.BATCH]),
    "needs": st.sampled_from([frozenset[str](), frozenset({"gpu"})]),
    "policy": st.sampled_from([Policy(), Policy(max_attempts=2)]),
    "cpus": st.sampled_from([None, 2]),
    "memory_mb": st.sampled_from([None, 512]),
    "run_at": st.sampled_from([NOW, After(SECOND), 2_000_000_000_000_000]),
    "deadline_at": st.sampled_from([None, After(60 * SECOND)]),
    "workflow_id": st.sampled_from([None, "film"]),
    "step_index": st.sampled_from([None, 3]),
    "correlation_id": st.sampled_from([None, "order-7"]),
    "trace_id": st.sampled_from([None, "trace-7"]),
    "labels": st.sampled_from([{}, {"team": "pictures"}]),
    "env": st.sampled_from([{}, {"locale": "de"}]),
    "reason": st.sampled_from([None, "asked for"]),
}
"""Terms that alike jobs may share, each with its default and another value."""
ALONE: dict[str, dict[str, Any]] = {
    "job_id": {"job_id": "seven"},
    "request_id": {"request_id": "seven"},
    "client_job_id": {"client_job_id": "1b4e28ba-2fa1-4d2b-883f-0016d3cca427"},
    "dedupe_key": {"dedupe_key": "seven"},
    "parent": {"parent_id": OTHER, "link_kind": Link.CHILD},
    "hold": {"holds": ("budget",)},
    "not admitted": {"admitted": False},
}
"""What a job has for itself."""


def bodies() -> st.SearchStrategy[list[bytes]]:
    return st.lists(st.integers(0, 99).map(encode_body), min_size=1, max_size=5)


def number(id: int) -> JobId:
    return JobId(UUID(int=id + 1))


def decide_each(terms: dict[str, Any], texts: list[bytes]) -> list[NewJob]:
    """Decide jobs one by one, as if nobody knew that they are alike."""
    return [
        submit(submission(**{**terms, "id": number(i), "body": text}), GATEWAY)
        for i, text in enumerate(texts)
    ]


def decide_alike(terms: dict[str, Any], texts: list[bytes]) -> AlikeJobs:
    first = submit(submission(**terms), GATEWAY)
    return make_alike(first, [number(i).bytes for i in range(len(texts))], texts)


@given(terms=st.fixed_dictionaries(TERMS), texts=bodies())
def test_alike_jobs_are_what_deciding_each_gives(terms: dict[str, Any], texts: list[bytes]) -> None:
    alike = decide_alike(terms, texts)

    assert may_be_alike(alike.first)
    assert alike.expand() == decide_each(terms, texts)
    assert all(type(body) is bytes for body in alike.bodies)


@given(terms=st.fixed_dictionaries(TERMS), texts=bodies())
def test_what_is_gathered_is_what_was_decided(terms: dict[str, Any], texts: list[bytes]) -> None:
    alike = decide_alike(terms, texts)
    gathered = gather_alike(alike.expand())

    assert gathered is not None
    assert gathered.expand() == alike.expand()


@pytest.mark.parametrize("alone", ALONE.values(), ids=ALONE)
def test_a_job_with_something_of_its_own_is_decided_by_itself(alone: dict[str, Any]) -> None:
    plain, other = (submit(submission(**terms), GATEWAY) for terms in ({}, alone))

    assert may_be_alike(plain)
    assert not may_be_alike(other)
    assert gather_alike([other]) is None
    assert gather_alike([plain, other]) is None


@pytest.mark.parametrize(
    "other",
    [
        {"task": "other"},
        {"queue": "other"},
        {"run_at": After(SECOND)},
        {"deadline_at": After(SECOND)},
        {"correlation_id": "other"},
        {"reason": "other"},
        {"labels": {"other": "1"}},
    ],
    ids=lambda other: next(iter(other)),
)
def test_jobs_that_differ_in_more_are_not_gathered(other: dict[str, Any]) -> None:
    assert gather_alike([submit(submission(**terms), GATEWAY) for terms in ({}, other)]) is None


def test_a_first_event_that_was_judged_otherwise_is_not_gathered() -> None:
    first, second = decide_each({}, [b"1", b"2"])
    judged = replace(
        second, event=replace(second.event, facts=replace(second.event.facts, rule="x"))
    )

    assert gather_alike([first, second]) is not None
    assert gather_alike([first, judged]) is None


@pytest.mark.parametrize(
    "other",
    [
        {"run_at": After(SECOND)},
        {"deadline_at": After(SECOND)},
        {"correlation_id": "other"},
        {"actor": "gateway:other"},
        {"reason": "other"},
        {"request_id": "other"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_jobs_made_of_the_same_are_compared_by_the_rest(other: dict[str, Any]) -> None:
    first, second = decide_each({}, [b"1", b"2"])
    changed = replace(second, event=replace(second.event, **other))

    assert gather_alike([first, changed]) is None


def test_a_part_keeps_what_is_each_ones_own() -> None:
    alike = decide_alike({}, [b"1", b"2", b"3"])

    assert alike.part(1, 3).expand() == alike.expand()[1:]
    assert [len(alike.part(0, 2)), len(alike.part(2, 9)), len(alike)] == [2, 1, 3]


def test_a_body_that_is_not_json_is_refused() -> None:
    with pytest.raises(BadData):
        decide_alike({}, [b"1", b"{"])
