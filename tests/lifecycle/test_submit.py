"""From a request to a new job: where it is born, what it holds, and which keys name it."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from holdfast.errors import BadData
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.derive import born, derive
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.invariants import broken_rules
from holdfast.lifecycle.keys import derived_keys, freed_keys
from holdfast.lifecycle.log_checks import log_problems
from holdfast.lifecycle.payload import BODY_LIMIT, encode_body
from holdfast.lifecycle.record import JobId, Key, NewJob
from holdfast.lifecycle.states import EventType, KeyKind, Kind, Link, Priority, State
from holdfast.lifecycle.submission import Submission, content_digest
from holdfast.lifecycle.submit import submit
from holdfast.lifecycle.times import NOW, SECOND, After
from tests.lifecycle.factories import CONTROL, JANITOR, Life, new_job
from tests.lifecycle.histories import BIRTH, GATEWAY, JOB, submission

OTHER = JobId(UUID(int=7))


@pytest.mark.req("A12")
@pytest.mark.parametrize(("admitted", "state"), [(True, State.QUEUED), (False, State.PENDING)])
def test_a_job_is_born_queued_or_waits_for_its_admission(admitted: bool, state: State) -> None:
    new = new_job(admitted=admitted)

    assert (new.record.state, new.event.to_state) == (state, state)
    assert (new.event.from_state, new.event.type) == (None, EventType.CREATED)
    assert (new.record.attempt, new.record.rev, new.event.rev) == (0, 1, 1)
    assert new.event.actor == "gateway:api"
    assert broken_rules(new.record) == []
    assert new.record == born(new.event)


@pytest.mark.req("E1")
@pytest.mark.parametrize("admitted", [True, False])
def test_a_job_may_be_held_from_its_birth(admitted: bool) -> None:
    life = Life(holds=("upload",), admitted=admitted)

    assert life.record.held_by == ("upload",)
    assert not life.record.claimable
    assert derive(life.events) == life.record
    assert log_problems(life.events) == []


@pytest.mark.req("A12")
def test_a_job_may_be_born_under_several_holds() -> None:
    life = Life(holds=("upload", "budget", "upload"), admitted=False)

    assert life.record.held_by == life.events[0].facts.holds == ("budget", "upload")
    assert derive(life.events) == life.record
    assert log_problems(life.events) == []


def test_a_job_is_due_at_once_unless_it_says_when() -> None:
    assert new_job().record.run_at == NOW
    assert Life(run_at=After(5 * SECOND)).record.run_at == BIRTH + 5 * SECOND
    assert Life(run_at=BIRTH + 7).record.run_at == BIRTH + 7
    assert Life(deadline_at=After(9 * SECOND)).record.deadline_at == BIRTH + 9 * SECOND


@pytest.mark.req("A7", "E7")
def test_what_was_asked_for_stands_in_the_first_event_and_is_read_from_there() -> None:
    asked: dict[str, Any] = {
        "tenant": "acme",
        "kind": Kind.COMMAND,
        "queue": "gpu",
        "priority": Priority.CRITICAL,
        "needs": frozenset({"gpu"}),
        "policy": Policy(max_attempts=9),
        "cpus": 4,
        "memory_mb": 512,
        "parent_id": OTHER,
        "link_kind": Link.CHILD,
        "workflow_id": "nightly",
        "step_index": 3,
        "job_id": "order-1",
    }
    life = Life(**asked, labels={"a": "b"}, env={"LANG": "de"}, body=b"[1]", correlation_id="c-1")

    assert {name: getattr(life.record, name) for name in asked} == asked
    assert life.record.public_id == "order-1"
    assert (life.record.created_at, life.record.updated_at) == (BIRTH, BIRTH)
    event = life.events[0]
    assert event.created is not None
    assert (event.created.labels, event.created.env) == ({"a": "b"}, {"LANG": "de"})
    assert (event.body, event.correlation_id) == (b"[1]", "c-1")


@pytest.mark.req("A1")
def test_without_a_given_id_a_job_is_known_by_the_text_of_its_internal_one() -> None:
    new = new_job()

    assert new.record.public_id == str(JOB)
    assert (new.keys, new.record.key_kinds) == ((), 0)


def keys_of(new: NewJob) -> dict[KeyKind, str]:
    return {KeyKind.of(key.kind): key.key for key in new.keys}


@pytest.mark.req("A1", "C11")
def test_each_given_key_names_the_job() -> None:
    new = new_job(job_id="J", request_id="R", client_job_id="AbC", dedupe_key=" Any\nthing ")

    assert keys_of(new) == {
        KeyKind.JOB_ID: "J",
        KeyKind.REQUEST_ID: "R",
        KeyKind.CLIENT_JOB_ID: "abc",
        KeyKind.DEDUPE: " Any\nthing ",
    }
    assert new.record.key_kinds == sum(kind.code for kind in keys_of(new))
    assert len({key.digest for key in new.keys}) == 1


def digest_of(**wishes: Any) -> bytes:
    return content_digest(submission(**{"job_id": "J", "body": b"1"} | wishes))


@pytest.mark.req("A1", "B5")
def test_the_same_content_has_the_same_digest_whoever_mints_the_id_and_traces_it() -> None:
    first = digest_of(labels={"a": "1", "b": "2"}, needs=frozenset({"x", "y", "z"}))
    again = digest_of(
        labels={"b": "2", "a": "1"}, needs=frozenset({"z", "y", "x"}), id=OTHER, trace_id="t"
    )

    assert first == again


@pytest.mark.req("A1")
def test_a_second_submit_of_a_job_id_is_the_same_though_each_call_has_its_own_request() -> None:
    """Resolution 13 compares bodies; a request_id is a key, not part of a body."""
    assert digest_of(request_id="call-1") == digest_of(request_id="call-2")


OTHERWISE: list[dict[str, Any]] = [
    {"body": b"2"},
    {"task": "other"},
    {"tenant": "other"},
    {"queue": "other"},
    {"priority": Priority.BATCH},
    {"needs": frozenset({"gpu"})},
    {"policy": Policy(max_attempts=2)},
    {"cpus": 1},
    {"run_at": After(1)},
    {"run_at": 1},
    {"deadline_at": After(1)},
    {"admitted": False},
    {"holds": ("upload",)},
    {"parent_id": OTHER},
    {"labels": {"a": "b"}},
    {"env": {"a": "b"}},
    {"adapter_id": "a"},
    {"files_id": "f"},
    {"job_id": "K"},
    {"workflow_id": "w"},
    {"step_index": 0},
]


@pytest.mark.req("B5")
@pytest.mark.parametrize("wish", OTHERWISE, ids=lambda wish: next(iter(wish)))
def test_other_content_has_another_digest(wish: dict[str, Any]) -> None:
    assert digest_of(**wish) != digest_of()


@pytest.mark.req("B27")
def test_a_field_that_a_later_version_adds_does_not_change_old_digests() -> None:
    class Newer(Submission, frozen=True, kw_only=True):
        shiny: bool = False

    asked: dict[str, Any] = {"id": JOB, "task": "greet", "job_id": "J", "labels": {"a": "b"}}
    asked |= {"run_at": After(5), "policy": Policy(timeout=7), "body": encode_body([1])}

    assert content_digest(Submission(**asked)).hex() == "468a76aa688b20af39dc44f606c99d74"
    assert content_digest(Newer(**asked)) == content_digest(Submission(**asked))
    assert content_digest(Newer(**asked, shiny=True)) != content_digest(Submission(**asked))
    assert digest_of(body=encode_body([1])) == digest_of(body=b"[1]")


def test_the_case_of_a_client_job_id_does_not_make_another_content() -> None:
    assert digest_of(client_job_id="AbC") == digest_of(client_job_id="abc")


def freed(life: Life, command: c.Command) -> set[KeyKind]:
    change = life.do(command)
    mask = freed_keys(change.record, change.next)
    return {kind for kind in KeyKind if kind.code & mask}


def held(life: Life) -> dict[KeyKind, str]:
    keys = derived_keys(life.record, life.events[0])
    return {KeyKind.of(key.kind): key.key for key in keys}


ALL_KEYS: dict[str, Any] = {
    "job_id": "J",
    "request_id": "R",
    "client_job_id": "C",
    "dedupe_key": "D",
}


@pytest.mark.req("C11")
def test_keys_are_freed_when_the_job_is_cleaned_but_its_ids_never() -> None:
    life = Life(**ALL_KEYS)
    assert freed(life, c.Cancel(actor=CONTROL)) == set()
    assert freed(life, c.Clean(actor=JANITOR)) == set()
    assert len(held(life)) == 4

    assert freed(life, c.Cleaned(actor=JANITOR)) == {KeyKind.CLIENT_JOB_ID, KeyKind.DEDUPE}

    assert held(life) == {KeyKind.JOB_ID: "J", KeyKind.REQUEST_ID: "R"}


@pytest.mark.req("C11")
def test_a_key_that_is_unique_among_live_jobs_is_freed_when_the_job_ends() -> None:
    life = Life(**ALL_KEYS, unique_live=True)
    assert KeyKind.DEDUPE in held(life)

    assert freed(life, c.Cancel(actor=CONTROL)) == {KeyKind.DEDUPE}

    assert KeyKind.DEDUPE not in held(life)
    life.do(c.Clean(actor=JANITOR))
    assert KeyKind.CLIENT_JOB_ID in freed(life, c.Cleaned(actor=JANITOR))


@pytest.mark.req("E7")
def test_the_keys_of_a_job_can_be_rebuilt_from_its_first_event() -> None:
    new = new_job(**ALL_KEYS)
    life = Life(new)

    assert derived_keys(life.record, life.events[0]) == new.keys
    assert derived_keys(Life().record, Life().events[0]) == ()
    assert all(isinstance(key, Key) for key in new.keys)


NAMES = ("job_id", "request_id", "client_job_id", "dedupe_key", "workflow_id")
TEXTS = (*NAMES, "task", "queue", "tenant", "correlation_id", "trace_id", "context_ptr", "reason")


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("value", ["", "a\0b", "\ud800", "x" * 1001, 7], ids=repr)
def test_bad_text_is_refused_by_the_name_of_its_field(name: str, value: Any) -> None:
    with pytest.raises(BadData) as caught:
        new_job(**{name: value})

    assert str(caught.value).startswith(name)


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"task": "charge@2"}, "task 'charge@2' must not contain '@'"),
        ({"needs": frozenset({""})}, "a capability in needs"),
        ({"holds": ("",)}, "a name in holds"),
        ({"holds": "upload"}, "holds must be a tuple"),
        ({"holds": tuple(map(str, range(101)))}, "holds has 101 names; the limit is 100"),
        ({"labels": {"a": 1}}, "labels['a']"),
        ({"labels": ["a"]}, "labels must be a mapping"),
        ({"env": {"": "x"}}, "a key of env"),
        ({"labels": []}, "labels must be a mapping"),
        ({"policy": Policy(max_attempts=0)}, "max_attempts"),
        ({"policy": Policy(max_attempts=True, timeout=1_234_567)}, "max_attempts"),
        ({"policy": Policy(lease=2**70)}, "lease must be under ten years"),
        ({"policy": "quick"}, "policy must be a Policy"),
        ({"needs": ["gpu"]}, "needs must be a frozenset"),
        ({"needs": frozenset(map(str, range(101)))}, "needs has 101 names; the limit is 100"),
        ({"needs": frozenset({1})}, "a capability in needs"),
        ({"cpus": 0}, "cpus must be between"),
        ({"cpus": "2"}, "cpus must be a whole number"),
        ({"cpus": True}, "cpus must be a whole number"),
        ({"memory_mb": 2**31}, "memory_mb must be between"),
        ({"step_index": -1}, "step_index must be between"),
        ({"step_index": 2**40}, "step_index must be between"),
        ({"kind": "function"}, "kind must be a Kind"),
        ({"priority": Priority.UNKNOWN}, "priority must be a Priority"),
        ({"link_kind": "child"}, "link_kind must be a Link"),
        ({"parent_id": "x"}, "parent_id must be a UUID"),
        ({"run_at": 5}, "run_at must be microseconds since 1970"),
        ({"run_at": 2**80}, "run_at must be microseconds since 1970"),
        ({"run_at": None}, "run_at must be an instant"),
        ({"run_at": After(2**60)}, "the span of run_at must be under 500,000,000 seconds (15.8 "),
        ({"run_at": After(-(2**60))}, "the span of run_at must be under 500,000,000 seconds"),
        ({"run_at": After(0.5)}, "the span of run_at"),  # type: ignore[arg-type]
        ({"deadline_at": -1}, "deadline_at must be microseconds"),
        ({"deadline_at": "soon"}, "deadline_at must be an instant"),
        ({"admitted": 1}, "admitted"),
        ({"body": "text"}, "body must be bytes"),
        ({"body": None}, "body must be bytes"),
        ({"body": b"not json"}, "body is not JSON"),
        ({"body": b'"%s"' % (b"x" * BODY_LIMIT)}, "the limit is"),
        ({"body": b"[" * 65 + b"]" * 65}, "nested deeper"),
    ],
)
def test_other_bad_data_is_refused_by_name(fields: dict[str, Any], what: str) -> None:
    with pytest.raises(BadData) as caught:
        new_job(**fields)

    assert what in str(caught.value)


def test_tests_may_submit_with_a_short_lease() -> None:
    quick = Submission(id=JOB, task="t", policy=Policy(lease=SECOND, heartbeat=SECOND // 2))

    assert submit(quick, GATEWAY).record.policy.lease == SECOND
    assert submit(replace(quick, task="u"), GATEWAY).record.task == "u"


def test_what_is_submitted_by_the_name_of_a_task_is_decided_once() -> None:
    first, second = (new_job(stated=(), body=body) for body in (b"1", b"2"))

    assert first.event.created is second.event.created
    assert (first.event.body, second.event.body) == (b"1", b"2")
    for stated in (None, ("max_attempts",)):
        other = new_job(stated=stated).event.created
        assert other is not None
        assert other.stated == stated
