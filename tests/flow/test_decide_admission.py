"""The scheduler and policies (case 34): what is decided after the birth, and by whom."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.admission.book import Approval, Book, Constraints, Verdict
from holdfast.admission.verdicts import Decision
from holdfast.errors import Forbidden, KernelUnavailable
from holdfast.flow import admit, deny
from holdfast.flow.admit import ASKS as ASKED
from holdfast.flow.admit import admit_pending, decide_held, deny_held
from holdfast.flow.approve import approve
from holdfast.flow.batch import Choose
from holdfast.flow.hold import unhold
from holdfast.lifecycle.commands import Command
from holdfast.lifecycle.record import Actor, Facts, Job, JobId
from holdfast.lifecycle.states import EventType, Kind, Role, State
from holdfast.lifecycle.submit import submit as decide_submit
from holdfast.maintenance.policy_health import examine_policy
from holdfast.maintenance.verify import LedgerProblem, verify
from holdfast.ports.kernel import STATE_NOTE, read_trouble
from holdfast.ports.models import SubmitRefused, Submitted
from holdfast.ports.store import Store
from holdfast.queries.why import reasons as r
from holdfast.services.external_kernel import FAILURES, HttpKernel
from holdfast.testing.factories import CONTROL, submission
from holdfast.testing.store_actions import job_in
from holdfast.webhooks.signature import check_signature
from holdfast.wiring import Address, opened
from tests.flow.policies import DENIES, ONE, OPEN, TWO, person, submitted
from tests.queries.why.acts import ask

pytestmark = pytest.mark.req("A13")
ASKS = OPEN + (
    '[kernel]\nurl = "http://127.0.0.1:1/ask"\ndeadline = "500ms"\n'
    '[[rule]]\nid = "ask"\nmatch = { task = "deploy" }\nthen = "ask"\n'
)
OTHER_KERNEL = ASKS.replace("127.0.0.1:1", "127.0.0.1:2")
OPENS = ASKS.replace('deadline = "500ms"', 'deadline = "500ms"\non_failure = "open"')
CLOCK = OPEN + (
    '[[rule]]\nid = "always"\nmatch = { task = "deploy" }\nhours = "00:00-24:00"\nthen = "deny"\n'
)


@pytest.fixture
def store(either_store: Store) -> Store:
    """Both engines."""
    return either_store


class Answers:
    """A kernel that answers as it is told, and remembers what it was asked."""

    def __init__(self, *answers: Decision | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[JobId] = []

    async def ask(self, book: Book, variables: Mapping[str, Any], job: JobId) -> Decision:
        self.asked.append(job)
        answer = self.answers[min(len(self.asked), len(self.answers)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer


def decision(verdict: Verdict, **more: Any) -> Decision:
    return Decision(verdict=verdict, rule="remote", rules="x", **more)


async def asked_for(store: Store, book: str = ASKS, **fields: Any) -> tuple[Job, str]:
    applied = await store.apply_policy(book, actor="ann")
    assert applied is not None
    return await submitted(store, **fields), applied.digest


async def now(store: Store, job: Job) -> Job:
    [found] = await store.get([job.id])
    assert found is not None
    return found


async def test_what_a_kernel_allows_is_admitted_with_its_answer_in_one_commit(
    store: Store,
) -> None:
    job, digest = await asked_for(store)
    assert job.held_by == ("policy",)
    allow = Decision(verdict=Verdict.ALLOW, rule="remote", rules=digest)
    kernel = Answers(allow, decision(Verdict.DENY))

    for _ in range(3):
        await decide_held(store, "s", kernel)

    assert (await now(store, job)).state is State.QUEUED
    assert kernel.asked == [job.id]
    [admitted] = await store.latest_events(job.id, [EventType.ADMITTED])
    facts = admitted.facts
    assert (facts.rule, facts.rules, facts.decided_by) == ("remote", digest, "kernel")


async def test_what_a_kernel_denies_is_denied(store: Store) -> None:
    job, digest = await asked_for(store)
    no = Decision(verdict=Verdict.DENY, rule="remote", reason="no", rules=digest)

    await decide_held(store, "s", Answers(no))

    job = await now(store, job)
    assert (job.state, job.error_code) == (State.DENIED, "denied")


async def test_what_a_kernel_wants_approved_waits_for_people(store: Store) -> None:
    job, digest = await asked_for(store)
    two = Decision(verdict=Verdict.APPROVE, rule="remote", rules=digest, approval=Approval(count=2))
    await decide_held(store, "s", Answers(two))
    assert (await now(store, job)).held_by == ("approval:remote/1/0", "approval:remote/2/0")

    for name in ("ann", "bob"):
        job = await approve(store, job.id, person(name))

    assert job.state is State.QUEUED


async def test_the_roles_that_a_kernel_names_may_approve_and_no_others(store: Store) -> None:
    book = TWO.replace(OPEN, ASKS.replace("deploy", "other"))
    job, digest = await asked_for(store, book, task="other")
    admins = Approval(roles=("admin",), expires_seconds=3600, on_expiry="cancel")
    # A rule of the book has the same name, and asks for operators.
    answer = Decision(verdict=Verdict.APPROVE, rule="two", rules=digest, approval=admins)
    await decide_held(store, "s", Answers(answer))

    with pytest.raises(Forbidden) as refused:
        await approve(store, job.id, person("ann"))
    assert refused.value.code == "approver_role"
    _, awaited = await ask(store, job, r.AwaitsApproval)
    assert awaited.roles == ("admin",)
    assert (await approve(store, job.id, person("ann", "admin"))).state is State.QUEUED


@pytest.mark.parametrize("verdict", [Verdict.APPROVE, Verdict.HOLD])
async def test_terms_that_a_decision_limits_hold_also_where_people_admit(
    store: Store, verdict: Verdict
) -> None:
    job, digest = await asked_for(store)
    short = Constraints(timeout_seconds=10, retries=0)
    answer = Decision(verdict=verdict, rule="r", rules=digest, constraints=short)
    await decide_held(store, "s", Answers(answer))

    if verdict is Verdict.APPROVE:
        await approve(store, job.id, person("ann"))
    else:
        await unhold(store, job.id, CONTROL, "policy-hold:r")
        await admit_pending(store, "s")

    job = await now(store, job)
    assert (job.state, job.policy.timeout, job.policy.max_attempts) == (
        State.QUEUED,
        10_000_000,
        1,
    )


async def test_terms_that_a_kernel_limits_are_the_job_s_from_then_on(store: Store) -> None:
    job, digest = await asked_for(store)
    short = Constraints(timeout_seconds=10)
    answer = Decision(verdict=Verdict.ALLOW, rule="r", rules=digest, constraints=short)

    await decide_held(store, "s", Answers(answer))

    job = await now(store, job)
    assert (job.state, job.policy.timeout) == (State.QUEUED, 10_000_000)


async def test_what_a_submit_has_fixed_beyond_a_kernel_s_limit_denies_and_says_so(
    store: Store,
) -> None:
    job, digest = await asked_for(store, cpus=8)
    two = Constraints(cpus=2)
    answer = Decision(verdict=Verdict.ALLOW, rule="r", rules=digest, constraints=two)

    await decide_held(store, "s", Answers(answer))

    [denied] = await store.latest_events(job.id, [EventType.DENIED])
    assert denied.reason is not None
    assert "cpus" in denied.reason


async def test_a_kernel_that_fails_leaves_the_job_pending_and_a_note_of_since_when(
    store: Store,
) -> None:
    job, _ = await asked_for(store)
    kernel = Answers(KernelUnavailable("away"))

    for _ in range(3):
        await decide_held(store, "s", kernel)

    assert (await now(store, job)).state is State.PENDING
    trouble = read_trouble(await store.note(STATE_NOTE))
    assert trouble is not None
    assert (trouble.tries, trouble.message) == (3, "away")
    _, reason = await ask(store, job, r.AwaitsDecision)
    assert (reason.tries, reason.first_failed_at, reason.error) == (3, trouble.since, "away")


async def test_a_kernel_that_answers_again_decides_and_the_note_is_over(store: Store) -> None:
    job, digest = await asked_for(store)
    allow = Decision(verdict=Verdict.ALLOW, rule="r", rules=digest)
    kernel = Answers(KernelUnavailable("away"), allow)

    for _ in range(2):
        await decide_held(store, "s", kernel)

    assert (await now(store, job)).state is State.QUEUED
    assert read_trouble(await store.note(STATE_NOTE)) is None


@pytest.mark.parametrize("book", [CLOCK, OTHER_KERNEL])
async def test_a_kernel_that_the_rules_no_longer_ask_is_not_to_blame(
    store: Store, book: str
) -> None:
    job, _ = await asked_for(store)
    await decide_held(store, "s", Answers(KernelUnavailable("away")))
    assert [one.text for one in await examine_policy(store) if "the kernel at" in one.text]

    await store.apply_policy(book, actor="ann")

    _, reason = await ask(store, job, r.AwaitsDecision)
    assert (reason.kernel, reason.tries, reason.first_failed_at) == (None, 0, None)
    assert not [one.text for one in await examine_policy(store) if "the kernel at" in one.text]


async def test_a_job_that_waits_for_the_clock_does_not_wait_for_a_kernel_that_fails(
    store: Store,
) -> None:
    book = ASKS + CLOCK.removeprefix(OPEN).replace("deploy", "ship")
    asked, _ = await asked_for(store, book)
    timed = await submitted(store, task="ship")
    await decide_held(store, "s", Answers(KernelUnavailable("away")), limit=1)

    _, of_kernel = await ask(store, asked, r.AwaitsDecision)
    _, of_clock = await ask(store, timed, r.AwaitsDecision)

    assert (of_kernel.kernel, of_clock.kernel) == ("http://127.0.0.1:1/ask", None)


async def test_the_trouble_with_a_kernel_is_counted_from_its_own_first_failure(
    store: Store,
) -> None:
    await asked_for(store)
    kernel = Answers(KernelUnavailable("away"))
    await decide_held(store, "s", kernel)
    before = read_trouble(await store.note(STATE_NOTE))
    await store.apply_policy(OTHER_KERNEL, actor="ann")

    await decide_held(store, "s", kernel)

    after = read_trouble(await store.note(STATE_NOTE))
    assert before is not None
    assert after is not None
    assert (after.url, after.tries) == ("http://127.0.0.1:2/ask", 1)
    assert after.since > before.since


async def test_only_a_policy_that_says_so_admits_when_its_kernel_fails(store: Store) -> None:
    job, _ = await asked_for(store, OPENS)

    await decide_held(store, "s", Answers(KernelUnavailable("away")))

    assert (await now(store, job)).state is State.QUEUED
    [admitted] = await store.latest_events(job.id, [EventType.ADMITTED])
    assert admitted.facts.decided_by == "failure"


async def test_a_rule_that_reads_the_clock_is_decided_by_the_store_s(store: Store) -> None:
    job, _ = await asked_for(store, CLOCK)
    assert job.held_by == ("policy",)

    await decide_held(store, "s", None)

    assert (await now(store, job)).state is State.DENIED


async def test_jobs_that_no_book_has_seen_are_judged_before_they_are_admitted(
    store: Store,
) -> None:
    before = [await job_in(store, State.PENDING, task=task) for task in ("deploy", "other")]
    await admit_pending(store, "s")
    assert [(await now(store, job)).state for job in before] == [State.PENDING] * 2
    await store.apply_policy(DENIES, actor="ann")

    report = await admit_pending(store, "s")

    assert (report.admitted, report.ended, report.failed) == (1, 1, {})
    assert [(await now(store, job)).state for job in before] == [State.DENIED, State.QUEUED]


async def test_denied_births_that_nobody_ended_are_ended_with_rule_and_reason(
    store: Store,
) -> None:
    applied = await store.apply_policy(DENIES, actor="ann")
    assert applied is not None
    job = await submitted(store)
    assert (job.state, job.held_by) == (State.PENDING, ("denied:no",))

    assert (await deny_held(store, "s")).ended == 1

    [denied] = await store.latest_events(job.id, [EventType.DENIED])
    facts = (denied.facts.rule, denied.facts.rules, denied.reason, denied.facts.error_code)
    assert facts == ("no", applied.digest, "not today", "denied")


async def test_a_policy_that_was_removed_lets_go_of_what_it_left_open(store: Store) -> None:
    job, _ = await asked_for(store)
    await store.apply_policy(None, actor="ann")

    await decide_held(store, "s", None)

    assert (await now(store, job)).state is State.QUEUED


@pytest.mark.parametrize("book", [ONE, TWO])
async def test_a_scan_of_the_pending_leaves_what_waits_for_people(store: Store, book: str) -> None:
    await store.apply_policy(book, actor="ann")
    await submitted(store)

    assert (await admit_pending(store, "s")).written == 0


# -- over HTTP


class Server:
    """A kernel over HTTP that answers with what it is given."""

    def __init__(self) -> None:
        self.answer = b"{}"
        self.status = b"200 OK"
        self.asked: list[tuple[dict[str, str], bytes]] = []
        self.wait = 0.0
        self.port = 0

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Also where the client has gone and the test ends while the answer is held back.
        with closing(writer):
            await reader.readline()
            headers = {}
            while (line := (await reader.readline()).strip()) != b"":
                name, _, value = line.decode().partition(":")
                headers[name.lower()] = value.strip()
            body = await reader.readexactly(int(headers["content-length"]))
            self.asked.append((headers, body))
            await asyncio.sleep(self.wait)
            head = b"HTTP/1.1 %s\r\ncontent-length: %d\r\nlocation: /elsewhere\r\n\r\n"
            writer.write(head % (self.status, len(self.answer)) + self.answer)
            await writer.drain()


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    kernel = Server()
    server = await asyncio.start_server(kernel.handle, "127.0.0.1", 0)
    kernel.port = server.sockets[0].getsockname()[1]
    async with server:
        yield kernel


def book_of(kernel: Server, extra: str = "") -> str:
    url = f"http://127.0.0.1:{kernel.port}/ask"
    return ASKS.replace("http://127.0.0.1:1/ask", url).replace('"500ms"', f'"10s"{extra}')


async def test_a_kernel_over_http_decides_by_the_same_variables_signed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "whsec_c2VjcmV0c2VjcmV0c2VjcmV0c2VjcmV0"
    monkeypatch.setenv("KERNEL_SECRET", secret)
    async with serving() as kernel:
        kernel.answer = b'{"verdict": "allow", "rule": "fine"}'
        job, _ = await asked_for(store, book_of(kernel, '\nsecret_env = "KERNEL_SECRET"'))
        await decide_held(store, "s", HttpKernel())

    assert (await now(store, job)).state is State.QUEUED
    [(headers, body)] = kernel.asked
    assert headers["idempotency-key"] == str(job.id)
    assert check_signature(secret, headers, body) == str(job.id)
    sent = msgspec.json.decode(body)
    assert (sent["job"], sent["variables"]["task"]) == (str(job.id), "deploy")


LIES = [
    b"",
    b"null",
    b"[]",
    b'{"verdict": "yes"}',
    b'{"verdict": "allow", "more": 1}',
    b'{"verdict": "ask"}',
    b'{"verdict": "approve", "approve": {"count": 0}}',
    b'{"verdict": "approve", "approve": {"count": 1000}}',
    b'{"verdict": "allow", "constraints": {"cpus": "two"}}',
    b'{"verdict": "allow", "constraints": {"timeout": 10}}',
    b'{"verdict": "allow", "constraints": {"retries": -1}}',
    b'{"verdict": "allow", "constraints": {"priority": "first"}}',
    b'{"verdict": "allow"} {"verdict": "deny"}',
    b" " * 100_000,
    b'{"verdict": "deny", "rule": "a\\u0000b"}',
    b'{"verdict": "deny", "rule": "-a"}',
    b'{"verdict": "deny", "rule": "a\\n"}',
    b'{"verdict": "deny", "rule": "%s"}' % (b"a" * 101),
    b'{"verdict": "deny", "reason": "a\\u0000b"}',
    b'{"verdict": "deny", "reason": "\xed\xa0\x80"}',
    b'{"verdict": "allow", "constraints": {"image": ["a\\u0000b"]}}',
    b'{"verdict": "approve", "approve": {"roles": []}}',
    b'{"verdict": "approve", "approve": {"roles": ["admin", "owner"]}}',
    b'{"verdict": "approve", "approve": {"roles": ["submitter"]}}',
]


@pytest.mark.parametrize("answer", LIES, ids=range(len(LIES)))
async def test_what_is_not_a_decision_is_not_taken_for_one(store: Store, answer: bytes) -> None:
    async with serving() as kernel:
        kernel.answer = answer
        job, _ = await asked_for(store, book_of(kernel))
        await decide_held(store, "s", HttpKernel())

    assert (await now(store, job)).held_by == ("policy",)
    assert read_trouble(await store.note(STATE_NOTE)) is not None


@pytest.mark.parametrize(
    ("answer", "rule", "reason"),
    [
        (b'{"verdict": "deny", "rule": "", "reason": ""}', "default", ""),
        (b'{"verdict": "deny", "rule": "a/b", "reason": "no"}', "a-b", "no"),
        (b'{"verdict": "deny", "rule": "a", "reason": "%s"}' % (b"n" * 2000), "a", "n" * 1000),
    ],
)
async def test_names_and_texts_of_a_kernel_are_made_to_fit_where_that_is_possible(
    store: Store, answer: bytes, rule: str, reason: str
) -> None:
    async with serving() as kernel:
        kernel.answer = answer
        job, _ = await asked_for(store, book_of(kernel))
        await decide_held(store, "s", HttpKernel())

    [denied] = await store.latest_events(job.id, [EventType.DENIED])
    assert (denied.facts.rule, denied.reason) == (rule, reason)


@pytest.mark.parametrize("status", [b"302 Found", b"500 No", b"204 Nothing", b"404 Not"])
async def test_only_status_200_is_an_answer_and_no_redirect_is_followed(
    store: Store, status: bytes
) -> None:
    async with serving() as kernel:
        kernel.answer, kernel.status = b'{"verdict": "allow"}', status
        job, _ = await asked_for(store, book_of(kernel))
        await decide_held(store, "s", HttpKernel())

    assert (await now(store, job)).state is State.PENDING
    assert len(kernel.asked) == 1


async def test_a_slow_kernel_is_not_waited_for_beyond_its_deadline(store: Store) -> None:
    async with serving() as kernel:
        kernel.wait = 600.0
        job, _ = await asked_for(store, book_of(kernel).replace('"10s"', '"50ms"'))
        async with asyncio.timeout(30):
            await decide_held(store, "s", HttpKernel())

    assert (await now(store, job)).state is State.PENDING


async def test_a_kernel_that_keeps_failing_is_left_alone_but_for_one_probe(store: Store) -> None:
    clock = 0.0
    async with serving() as kernel:
        kernel.status = b"500 No"
        job, _ = await asked_for(store, book_of(kernel))
        asks = HttpKernel(clock=lambda: clock)
        for _ in range(10):
            await decide_held(store, "s", asks)
        assert len(kernel.asked) == FAILURES
        clock += 60.0
        for _ in range(5):
            await decide_held(store, "s", asks)
        assert len(kernel.asked) == FAILURES + 1
        clock += 60.0
        kernel.status, kernel.answer = b"200 OK", b'{"verdict": "allow"}'
        await decide_held(store, "s", asks)

    assert (await now(store, job)).state is State.QUEUED


async def test_what_the_clock_decides_does_not_wait_behind_a_dead_kernel(store: Store) -> None:
    book = ASKS + CLOCK.removeprefix(OPEN).replace("deploy", "ship")
    await asked_for(store, book)
    for _ in range(3 * ASKED):
        await submitted(store)
    last = await submitted(store, task="ship")
    kernel, after = HttpKernel(), None

    # In the first pass it fails, and is then left alone.
    for _ in range(2):
        after = (await decide_held(store, "s", kernel, after=after)).next

    assert (await now(store, last)).state is State.DENIED


@pytest.mark.parametrize(("names", "batch"), [(2, 500), (1000, 2)])
async def test_neither_many_rules_nor_jobs_that_cannot_be_ended_keep_others_from_it(
    store: Store, monkeypatch: pytest.MonkeyPatch, names: int, batch: int
) -> None:
    monkeypatch.setattr(admit, "NAMES", names)
    monkeypatch.setattr(admit, "BATCH", batch)
    rules = [DENIES.removeprefix(OPEN).replace("no", f"no{n}", 1) for n in range(5)]
    rules = [rule.replace("deploy", f"deploy{n}") for n, rule in enumerate(rules)]
    await store.apply_policy(OPEN + "".join(rules), actor="ann")
    jobs = [await submitted(store, task=f"deploy{n}") for n in range(5)]
    jobs += [await submitted(store, task="deploy0") for _ in range(2)]
    stuck = {jobs[0].id, jobs[5].id}

    def choose_denial(store: Store, name: str) -> Choose:
        choose = deny.choose_denial(store, name)

        async def choose_some(job: Job) -> Sequence[Command]:
            if job.id in stuck:
                raise ValueError("a bad job")
            return await choose(job)

        return choose_some

    monkeypatch.setattr(admit, "choose_denial", choose_denial)
    await deny_held(store, "s")

    states = {(await now(store, job)).state for job in jobs if job.id not in stuck}
    assert states == {State.DENIED}


async def test_a_command_sent_again_after_the_rules_changed_is_the_same_job(store: Store) -> None:
    body = b'{"type": "worker", "argv": ["make"]}'
    asked = submission(task="worker", kind=Kind.COMMAND, body=body)
    job = decide_submit(asked, Actor(Role.GATEWAY, "ann"))
    other = submission(task="worker", kind=Kind.COMMAND, body=body.replace(b"make", b"rm"))
    forged = decide_submit(other, Actor(Role.GATEWAY, "ann"))
    event = replace(forged.event, id=job.event.id)
    forged = replace(forged, event=event, record=replace(forged.record, id=job.record.id))
    limits = OPEN + (
        '[[rule]]\nid = "net"\nmatch = { kind = "command" }\nthen = "allow"\n'
        'constrain = { network = "none" }\n'
    )
    await store.apply_policy(limits, actor="ann")
    [first] = await store.submit([job])
    assert isinstance(first, Submitted)
    await store.apply_policy(OPEN, actor="ann")

    [again] = await store.submit([job])
    [refused] = await store.submit([forged])

    assert isinstance(again, Submitted), again
    assert again.job.id == first.job.id
    assert isinstance(refused, SubmitRefused)


# Not by the fixture, which verifies what a test leaves behind.
async def test_verify_finds_a_job_that_was_judged_by_rules_that_are_in_no_book(
    address: Address,
) -> None:
    async with opened(address) as store:
        await _verify_rules(store)


async def _verify_rules(store: Store) -> None:
    await store.apply_policy(TWO, actor="ann")
    approved = await submitted(store)
    for name in ("ann", "bob"):
        await approve(store, approved.id, person(name))
    await store.apply_policy(DENIES, actor="ann")
    denied = await submitted(store)
    await deny_held(store, "s")
    found: list[LedgerProblem] = []
    await verify(store, on_problem=found.append)
    assert found == []
    await store.apply_policy(None, actor="ann")
    job = decide_submit(submission(), Actor(Role.GATEWAY, "ann"))
    facts = Facts(verdict="allow", rules="ab" * 32)
    await store.submit([replace(job, event=replace(job.event, facts=facts))])

    await verify(store, on_problem=found.append)

    assert [(one.id, "missing" in one.text) for one in found] == [(job.record.id, True)]
    assert (await now(store, denied)).state is State.DENIED
