"""A new job as the rules let it be born: its verdict, its holds, its limits."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.admission.book import Book, Constraints, Verdict
from holdfast.admission.constraints import limit
from holdfast.admission.door import decided_birth, judge_birth, unjudged_birth
from holdfast.admission.variables import UNLIMITED, recorded_variables, variables_of
from holdfast.admission.verdicts import Decision
from holdfast.lifecycle.command_spec import CommandSpec
from holdfast.lifecycle.derive import born
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.payload import digest
from holdfast.lifecycle.record import Actor, NewJob
from holdfast.lifecycle.states import Kind, Link, Priority, Role, State
from holdfast.lifecycle.submit import submit, was_admitted
from holdfast.lifecycle.terms import corrected_policy
from holdfast.testing.factories import job_ids, new_job, submission
from tests.admission.factories import book_of, variables

SECOND = 1_000_000
HEAD = '[kernel]\nurl = "https://kernel.example"'


def command(spec: CommandSpec | None = None, **more: Any) -> NewJob:
    """Return a new command."""
    spec = spec or CommandSpec(type="worker", argv=("git", "push"), image="ci/git")
    terms: dict[str, Any] = {"kind": Kind.COMMAND, "task": spec.type, "cpus": 4, "memory_mb": 4096}
    terms["policy"] = Policy(max_attempts=1, timeout=1800 * SECOND)
    return new_job(body=msgspec.json.encode(spec), **terms | more)


def ruled(rest: str, **more: Any) -> Book:
    """Return a book of one rule."""
    return book_of(f'id = "it"\n{rest}', **more)


def whole(job: NewJob) -> NewJob:
    """Return the birth if its record is the one that its event makes, else fail."""
    assert job.record == born(job.event)
    return job


@pytest.mark.req("A13")
def test_an_allowed_job_is_born_as_before_with_the_verdict_in_its_event() -> None:
    job, book = new_job(), ruled('then = "allow"')

    judged = whole(judge_birth(job, book))

    facts = judged.event.facts
    assert (facts.verdict, facts.rule, facts.rules) == ("allow", "it", book.digest)
    assert (judged.record, judged.keys) == (job.record, job.keys)
    assert judge_birth(job, book_of()).event.facts.rule is None
    # Alike jobs share one text in the store, which is recognised by their facts.
    assert judge_birth(new_job(), book).event.facts is facts


HOLDS = {
    "deny": ('then = "deny"', ("denied:it",)),
    "hold": ('then = "hold"', ("policy-hold:it",)),
    "approve": ('then = "approve"', ("approval:it/1/0",)),
    "twice": (
        'then = "approve"\napprove = { count = 2, expires = "1h" }',
        ("approval:it/1/3600", "approval:it/2/3600"),
    ),
    "ask": ('then = "ask"', ("policy",)),
    "clock": ('then = "deny"\nweekdays = ["mon"]', ("policy",)),
}


@pytest.mark.req("A13")
@pytest.mark.parametrize("name", HOLDS)
def test_any_other_verdict_holds_the_job_before_its_queue(name: str) -> None:
    rest, holds = HOLDS[name]
    book = ruled(rest, head=HEAD)

    judged = whole(judge_birth(new_job(), book))

    assert (judged.record.state, judged.record.held_by) == (State.PENDING, holds)
    facts = judged.event.facts
    verdict = {"twice": "approve", "ask": "undecided", "clock": "undecided"}.get(name, name)
    assert (facts.verdict, facts.rule, facts.rules) == (verdict, "it", book.digest)
    assert facts.holds == holds


@pytest.mark.req("A13")
def test_a_job_denied_by_the_default_says_so() -> None:
    judged = judge_birth(new_job(), book_of(default="deny"))

    assert judged.record.held_by == ("denied:default",)
    assert (judged.event.facts.verdict, judged.event.facts.rule) == ("deny", None)


def test_a_job_that_waits_for_an_upload_keeps_that_hold() -> None:
    job = new_job(holds=("upload:7",), admitted=False)

    held = whole(judge_birth(job, ruled('then = "hold"')))
    allowed = whole(judge_birth(job, ruled('then = "allow"')))

    assert held.record.held_by == ("policy-hold:it", "upload:7")
    assert (allowed.record.held_by, allowed.record.state) == (("upload:7",), State.PENDING)


@pytest.mark.req("A13")
def test_a_birth_is_judged_once_by_a_book() -> None:
    book = ruled('then = "deny"')
    judged = judge_birth(new_job(), book)

    assert judge_birth(judged, book) is judged


@pytest.mark.req("A13")
@pytest.mark.parametrize("holds", [(), ("upload:7",)])
def test_a_birth_that_an_older_book_judged_is_judged_anew(holds: tuple[str, ...]) -> None:
    job = new_job(holds=holds, admitted=not holds)
    old, new = ruled('then = "deny"'), ruled('then = "allow"')

    again = whole(judge_birth(judge_birth(job, old), new))

    assert again == judge_birth(job, new)
    assert unjudged_birth(job) is job


@pytest.mark.req("A13")
def test_the_successor_of_a_job_that_only_the_rules_held_goes_to_its_queue() -> None:
    """The rules judge the successor, too: nothing else keeps it from its queue."""
    book = ruled('then = "deny"')
    waits = new_job(holds=("upload:7",), admitted=False)

    assert was_admitted(first_of(judge_birth(new_job(), book)))
    assert not was_admitted(first_of(judge_birth(waits, book)))
    assert not was_admitted(first_of(waits))
    assert not was_admitted(first_of(judge_birth(new_job(admitted=False), ruled('then = "allow"'))))


def first_of(job: NewJob) -> Any:
    """Return the first event of a job."""
    return job.event


def test_jobs_of_holdfasts_own_are_not_judged() -> None:
    asked = submission(task="holdfast.webhook", queue="holdfast.webhooks")
    job = submit(asked, Actor(Role.SCHEDULER, "x"), internal=True)

    assert judge_birth(job, book_of(default="deny")) is job


@pytest.mark.req("A13")
def test_limits_change_the_job_and_keep_what_was_asked_for() -> None:
    job = command(job_id="K", priority=Priority.CRITICAL)
    book = ruled(
        'then = "allow"\nconstrain = { timeout = "10m", cpus = 2, memory_gb = 1, retries = 0, '
        'network = "none", image = "ci/*", priority = "interactive" }'
    )

    judged = whole(judge_birth(job, book))

    made = judged.event.created
    assert made is not None
    assert (made.cpus, made.memory_mb, made.priority) == (2, 1024, Priority.INTERACTIVE)
    assert made.policy.timeout == 600 * SECOND
    assert judged.event.facts.asked == {
        "timeout_seconds": 1800, "cpus": 4, "memory_mb": 4096, "priority": "critical",
        "network": None,
    }  # fmt: skip
    assert judged.event.body is not None
    assert msgspec.json.decode(judged.event.body)["network"] == "none"
    assert judged.event.digest == digest(judged.event.body)
    assert judged.keys == job.keys
    assert made.content == job.event.created.content if job.event.created else False
    assert recorded_variables(judged.event) | {"body_bytes": 0} == variables_of(job) | {
        "body_bytes": 0
    }


def test_a_job_within_its_limits_is_not_changed() -> None:
    job = command(CommandSpec(type="worker", command="ls", network="none"))
    found = limit(job, Constraints(timeout_seconds=1800, cpus=4, memory_mb=4096, network="none"))

    assert (found.job, found.asked) == (job, {})


def test_a_function_without_terms_gets_a_timeout_and_no_room() -> None:
    bounds = Constraints(timeout_seconds=1.5, cpus=1, memory_mb=1, network="none")
    found = limit(new_job(policy=Policy()), bounds)

    assert found.job.record.policy.timeout == 1_500_000
    assert (found.job.record.cpus, found.asked) == (None, {"timeout_seconds": None})
    assert recorded_variables(
        replace(found.job.event, facts=replace(found.job.event.facts, asked=found.asked))
    )["timeout_seconds"] == UNLIMITED  # fmt: skip


@pytest.mark.req("A13")
def test_a_term_within_its_limit_is_stated_for_the_task_s_own_may_be_beyond_it() -> None:
    job = new_job(stated=(), policy=Policy(max_attempts=3))

    judged = whole(judge_birth(job, ruled('then = "allow"\nconstrain = { retries = 2 }')))

    assert judged.event.created is not None
    assert judged.event.facts.asked is None
    task = Policy(max_attempts=10, timeout=5 * SECOND)
    corrected = corrected_policy(judged.record, judged.event.created, task)  # type: ignore[arg-type]
    assert corrected is not None
    assert (corrected.max_attempts, corrected.timeout) == (3, 5 * SECOND)


def test_a_job_that_is_decided_on_later_keeps_its_retries_until_then() -> None:
    job = new_job(stated=("lease",))

    judged = whole(judge_birth(job, ruled('then = "ask"', head=HEAD)))

    assert judged.event.created is not None
    assert judged.event.created.stated == ("lease", "max_attempts")


@pytest.mark.req("A13")
def test_a_limited_term_is_stated_so_that_no_worker_fills_it_in() -> None:
    job = new_job(stated=("lease",))
    found = limit(job, Constraints(retries=0, timeout_seconds=1))

    assert found.job.event.created is not None
    assert found.job.event.created.stated == ("lease", "max_attempts", "timeout")


@pytest.mark.req("A13")
def test_what_a_kernel_limits_and_no_limit_can_allow_is_denied() -> None:
    decision = Decision(
        verdict=Verdict.ALLOW, rule="k", rules="ab", constraints=Constraints(image=("ops/*",))
    )

    judged = whole(decided_birth(command(), decision))

    assert judged.record.held_by == ("denied:k",)
    assert judged.event.facts.verdict == "deny"


def most(low: int, high: int) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), st.integers(low, high))


@pytest.mark.req("A13")
@settings(max_examples=300, deadline=None)
@given(
    constraints=st.builds(
        Constraints,
        timeout_seconds=st.one_of(st.none(), st.floats(0.001, 5000)),
        retries=most(0, 5), cpus=most(1, 8), memory_mb=most(1, 8192),
        network=st.sampled_from([None, "none", "host"]),
        priority=st.sampled_from([None, "critical", "interactive", "batch"]),
    ),
    terms=st.fixed_dictionaries({
        "cpus": most(1, 8), "memory_mb": most(1, 8192),
        "priority": st.sampled_from([Priority.CRITICAL, Priority.INTERACTIVE, Priority.BATCH]),
        "policy": st.builds(
            Policy, max_attempts=st.integers(1, 6), timeout=most(1, 5000 * SECOND)
        ),
    }),
    boxed=st.booleans(),
)  # fmt: skip
def test_limits_are_never_looser_than_what_was_asked_for(
    constraints: Constraints, terms: dict[str, Any], boxed: bool
) -> None:
    job = command(**terms) if boxed else new_job(**terms)

    found = limit(job, constraints)

    before, after = job.record, whole(found.job).record
    unlimited = float("inf")
    for name in ("cpus", "memory_mb"):
        got, asked = getattr(after, name), getattr(before, name)
        assert (got or unlimited) <= (asked or unlimited)
        if boxed:
            assert got is None or got <= (getattr(constraints, name) or unlimited)
    assert after.policy.max_attempts <= before.policy.max_attempts
    assert (after.policy.timeout or unlimited) <= (before.policy.timeout or unlimited)
    assert after.priority.code >= before.priority.code
    if constraints.retries is not None:
        assert after.policy.max_attempts <= constraints.retries + 1
    assert after.policy.max_attempts >= 1
    assert bool(found.asked) == (found.job != job)
    assert found.job.keys == job.keys
    assert limit(found.job, constraints) == (found.job, {})


@pytest.mark.req("A13")
def test_the_variables_of_a_function() -> None:
    job = new_job(
        task="job.mail", queue="q", tenant="t", needs=frozenset({"b", "a"}), adapter_id="x",
        labels={"risk": "money, data", "risk:pii": "", "team": "a"}, env={"A": "b"}, cpus=2,
        parent_id=job_ids.mint(), link_kind=Link.CHILD, body=b'"12345678"',
        policy=Policy(max_attempts=3, timeout=1_500_000),
    )  # fmt: skip

    assert variables_of(job) == variables(
        task="job.mail", topic="job.mail", queue="q", tenant="t", needs=["a", "b"], adapter="x",
        labels={"risk": "money, data", "risk:pii": "", "team": "a"}, env={"A": "b"}, cpus=2,
        parent="child", body_bytes=10, retries=2, timeout_seconds=2,
        risk_tags=["data", "money", "pii"], submitter="api",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (CommandSpec(type="worker", argv=("git", "push"), image="i"), ["git", "push"]),
        (CommandSpec(type="worker", command="git push", image="i"), ["git push"]),
        (CommandSpec(type="agent", task="do it", image="i"), []),
    ],
)
def test_the_variables_of_a_command(spec: CommandSpec, words: list[str]) -> None:
    found = variables_of(command(spec))

    assert (found["command"], found["image"], found["network"]) == (words, "i", "")


def test_a_body_that_is_no_command_has_no_variables_of_one() -> None:
    job = new_job(kind=Kind.COMMAND, body=b'"x"')

    assert (variables_of(job)["command"], variables_of(job)["image"]) == ([], "")
    assert limit(job, Constraints(network="none")) == (job, {})


@pytest.mark.parametrize(
    ("actor", "role", "name"),
    [
        (Actor(Role.GATEWAY, "ann"), "gateway", "ann"),
        (Actor(Role.CONTROL, "a:b"), "control", "a:b"),
        (Actor(Role.OWNER, "host:7:x"), "worker", "host:7:x"),
        (Actor(Role.BUS, "nats"), "worker", "nats"),
    ],
)
def test_who_submitted_a_job(actor: Actor, role: str, name: str) -> None:
    found = variables_of(submit(submission(), actor))

    assert (found["submitter_role"], found["submitter"]) == (role, name)


def test_a_job_without_a_timeout_has_a_longer_one_than_any() -> None:
    assert variables_of(new_job(policy=Policy()))["timeout_seconds"] == UNLIMITED


def test_a_bus_job_has_its_task_as_topic() -> None:
    assert variables_of(new_job(kind=Kind.BUS, task="t"))["topic"] == "t"
    assert variables_of(new_job(task="t"))["topic"] == ""
