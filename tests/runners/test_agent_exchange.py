"""What an agent reports is recorded once, whole and masked, whatever happens around it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from holdfast.ids import mint_id
from holdfast.lifecycle.record import ANSWER
from holdfast.ports.box import LOG_FILE, Box
from holdfast.ports.runner import Attempt
from holdfast.runners.command import agent_exchange
from holdfast.runners.command.agent_exchange import EVENTS_FILE, POSITION_FILE, AgentExchange
from holdfast.tasks.durable.protocol import (
    QUESTION,
    Entry,
    NoSignal,
    NotRecorded,
    Recall,
    Recalled,
    RecordQuestion,
    RecordStep,
    Signalled,
    StepRecorded,
    TakeSignal,
)
from tests.support.spool import make_box

LIMIT_SECONDS = 60.0
OUTAGE = NotRecorded("store_unavailable", "the store does not answer", again=True)


class FakeAttempt:
    """An attempt whose store is this object; `trouble` may answer instead of it."""

    def __init__(self, *entries: Entry) -> None:
        self.entries = list(entries)
        self.signals: dict[str, bytes] = {}
        self.recorded: list[RecordStep | RecordQuestion] = []
        self.reports: list[Any] = []
        self.trouble: Callable[[Any], NotRecorded | None] = lambda request: None
        self.may_recall = asyncio.Event()
        self.may_recall.set()
        self._tasks: list[asyncio.Task[None]] = []

    def progress(self, body: bytes) -> None:
        """Note it."""
        self.reports.append(json.loads(body))

    def ask(self, request: Any, answer: Callable[[Any], None]) -> None:
        """Answer a little later, as a store does."""
        self._tasks.append(asyncio.create_task(self._answer(request, answer)))

    async def _answer(self, request: Any, answer: Callable[[Any], None]) -> None:
        await asyncio.sleep(0.001)
        answer(self.trouble(request) or await self._reply_to(request))

    async def _reply_to(self, request: Any) -> Any:
        match request:
            case Recall():
                await self.may_recall.wait()
                return Recalled(self.entries)
            case TakeSignal(names):
                name = next((name for name in names if name in self.signals), None)
                return NoSignal() if name is None else Signalled(self.signals.pop(name), name)
            case _:
                self.recorded.append(request)
                return StepRecorded()

    @property
    def steps(self) -> list[str]:
        """The names of the steps that were recorded."""
        return [one.name for one in self.recorded if isinstance(one, RecordStep)]

    @property
    def questions(self) -> list[tuple[str, str]]:
        """The questions that were recorded, with the names of their signals."""
        found = [one for one in self.recorded if isinstance(one, RecordQuestion)]
        return [(one.signal, json.loads(one.body)["question"]) for one in found]


class FakeAgent:
    """An agent: what it reports, and what it finds."""

    def __init__(self, box: Box, attempt: FakeAttempt) -> None:
        self.box = box
        self.attempt = attempt
        self._over = asyncio.Event()
        self._watching: asyncio.Task[int] | None = None

    def report(self, *reports: Any) -> None:
        """Append reports, each a line."""
        assert self.box.exchange is not None
        with (self.box.exchange / EVENTS_FILE).open("a") as file:
            file.writelines(json.dumps(report) + "\n" for report in reports)

    def start(self) -> None:
        """Have a worker watch it."""
        exchange = AgentExchange(self.box, cast("Attempt", self.attempt))
        self._watching = asyncio.create_task(exchange.beside(self._run()))

    async def _run(self) -> int:
        await self._over.wait()
        return 0

    async def end(self) -> int:
        """End it with exit code 0; return how the worker sees it."""
        self._over.set()
        assert self._watching is not None
        return await asyncio.wait_for(self._watching, LIMIT_SECONDS)

    async def until(self, holds: Callable[[], object]) -> None:
        """Wait until something holds."""
        async with asyncio.timeout(LIMIT_SECONDS):
            while not holds():  # noqa: ASYNC110  files, too
                await asyncio.sleep(0.01)

    async def answer(self, id: str) -> Any:
        """Wait for the answer to a question, and read it."""
        assert self.box.exchange is not None
        file = self.box.exchange / "answers" / id
        await self.until(file.exists)
        return json.loads(file.read_bytes())


@pytest.fixture
def box(tmp_path: Path) -> Box:
    """A box with an exchange."""
    directory = tmp_path / "box"
    for name in ("exchange", "secrets"):
        (directory / name).mkdir(parents=True)
    made = make_box(mint_id(), 1, directory)
    return replace(made, exchange=directory / "exchange", secrets=directory / "secrets")


@pytest.fixture
def agent(box: Box, monkeypatch: pytest.MonkeyPatch) -> FakeAgent:
    """An agent that is not started yet."""
    monkeypatch.setattr(agent_exchange, "RETRY_SECONDS", 0.01)
    return FakeAgent(box, FakeAttempt())


async def test_the_end_of_a_box_loses_no_report(agent: FakeAgent) -> None:
    names = [f"s{number}" for number in range(50)]
    agent.report(*({"step": name} for name in names))
    agent.start()
    await agent.until(lambda: len(agent.attempt.steps) > 5)
    assert await agent.end() == 0
    assert agent.attempt.steps == names


async def test_nothing_is_read_before_it_is_known_what_is_recorded(agent: FakeAgent) -> None:
    assert agent.box.secrets is not None
    (agent.box.secrets / "KEY").write_text("canary")
    agent.attempt.entries = [Entry(kind="step", name="build", use=1)]
    agent.attempt.may_recall.clear()
    agent.report({"step": "build"}, {"step": "say canary"}, {"progress": 1, "message": "canary"})
    agent.start()
    ending = asyncio.create_task(agent.end())
    await asyncio.sleep(0.05)
    agent.attempt.may_recall.set()
    assert await ending == 0
    assert agent.attempt.steps == ["say ***"]
    assert agent.attempt.reports == [{"percent": 100.0, "message": "***"}]


async def test_an_outage_of_the_store_delays_reports_and_answers(agent: FakeAgent) -> None:
    refusals: dict[type[Any], int] = {Recall: 2, RecordStep: 2, TakeSignal: 2}

    def fail(request: Any) -> NotRecorded | None:
        kind = type(request)
        refusals[kind] = refusals.get(kind, 0) - 1
        return OUTAGE if refusals[kind] >= 0 else None

    agent.attempt.trouble = fail
    agent.attempt.signals[f"{ANSWER}merge"] = b'"yes"'
    agent.report({"step": "build"}, {"ask": "merge", "question": "Merge it?"})
    agent.start()
    assert await agent.answer("merge") == "yes"
    assert await agent.end() == 0
    assert agent.attempt.steps == ["build"]


async def test_a_lost_lease_ends_the_exchange(agent: FakeAgent) -> None:
    lost = NotRecorded("lease_lost", "it is another's")
    agent.attempt.trouble = lambda one: lost if isinstance(one, RecordStep) else None
    agent.report({"step": "build"}, {"progress": 0.5})
    agent.start()
    assert await agent.end() == 0
    assert agent.attempt.reports == []


async def test_what_the_store_never_records_costs_only_itself(agent: FakeAgent) -> None:
    refused = NotRecorded("bad_data", "it is not text")
    agent.attempt.trouble = lambda one: refused if getattr(one, "name", "") == "bad" else None
    agent.report({"step": "bad"}, {"step": "good"})
    agent.start()
    assert await agent.end() == 0
    assert agent.attempt.steps == ["good"]


async def test_trouble_of_the_disk_changes_no_end(
    agent: FakeAgent, caplog: pytest.LogCaptureFixture
) -> None:
    # Directories in the place of files: no write succeeds, whoever tries.
    (agent.box.directory / LOG_FILE).mkdir()
    (agent.box.directory / f"{POSITION_FILE}.new").mkdir()
    agent.report({"log": "hello"}, {"step": "first"})
    agent.start()
    await agent.until(lambda: agent.attempt.steps)
    agent.report({"log": "hello"}, {"step": "last"})
    assert await agent.end() == 0
    assert agent.attempt.steps == ["first", "last"]
    assert "reports are not valid" in caplog.text


async def test_an_answer_that_could_not_be_written_is_written_later(agent: FakeAgent) -> None:
    assert agent.box.exchange is not None
    in_the_way = agent.box.exchange / "answers"
    in_the_way.write_text("not a directory")
    agent.attempt.signals[f"{ANSWER}merge"] = b'"yes"'
    agent.report({"ask": "merge", "question": "Merge it?"})
    agent.start()
    await agent.until(lambda: agent.attempt.questions and not agent.attempt.signals)
    in_the_way.unlink()
    assert await agent.answer("merge") == "yes"
    await agent.end()


def asked(id: str, text: str) -> Entry:
    """Return what the ledger has of a question."""
    body = json.dumps({"question": text}).encode()
    return Entry(kind=QUESTION, name=ANSWER + id, use=1, body=body)


def answered(id: str, use: int, answer: str) -> Entry:
    """Return what the ledger has of an answer."""
    return Entry(kind="wait", name=ANSWER + id, use=use, body=json.dumps(answer).encode())


async def test_a_recalled_answer_belongs_to_its_question(agent: FakeAgent) -> None:
    agent.attempt.entries = [asked("q7", "Delete it?"), answered("q7", 1, "yes")]
    agent.report({"ask": "q7", "question": "Publish it?"})
    agent.start()
    await agent.until(lambda: agent.attempt.questions)
    assert agent.attempt.questions == [(f"{ANSWER}q7", "Publish it?")]
    agent.attempt.signals[f"{ANSWER}q7"] = b'"no"'
    assert await agent.answer("q7") == "no"
    await agent.end()


async def test_a_recalled_answer_is_handed_over_to_the_same_question(agent: FakeAgent) -> None:
    agent.attempt.entries = [asked("q7", "Delete it?"), answered("q7", 1, "yes")]
    agent.report({"ask": "q7", "question": "Delete it?"})
    agent.start()
    assert await agent.answer("q7") == "yes"
    await agent.end()
    assert agent.attempt.questions == []


async def test_a_question_that_is_refused_is_answered_by_that(agent: FakeAgent) -> None:
    agent.report({"ask": "empty", "question": ""})
    many = range(agent_exchange.QUESTIONS + 1)
    agent.report(*({"ask": f"q{number}", "question": "Well?"} for number in many))
    agent.start()
    assert await agent.answer("empty") == {"refused": "a question must not be empty"}
    assert await agent.answer("q100") == {"refused": "there are more than 100 questions"}
    await agent.end()


async def test_garbage_leaves_turns_to_the_event_loop(
    agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = 100 * agent_exchange.TURN_LINES
    assert agent.box.exchange is not None
    (agent.box.exchange / EVENTS_FILE).write_bytes(b"x\n" * lines)
    agent.report({"step": "last"})
    turn, turns = 0, set()
    monkeypatch.setattr(AgentExchange, "_count_garbage", lambda *_: turns.add(turn))
    agent.start()
    async with asyncio.timeout(LIMIT_SECONDS):
        while not agent.attempt.steps:
            turn += 1
            await asyncio.sleep(0)
    assert await agent.end() == 0
    assert len(turns) >= 100


async def test_the_room_for_lines_of_a_log_is_one_for_all_workers(
    agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_exchange, "LOG_BYTES", 1000)
    agent.report({"log": "a" * 900})
    agent.start()
    await agent.until((agent.box.directory / POSITION_FILE).exists)
    await agent.end()
    agent.report({"log": "b" * 900}, {"step": "last"})
    adopted = FakeAgent(agent.box, FakeAttempt())
    adopted.start()
    await adopted.until(lambda: adopted.attempt.steps)
    await adopted.end()
    log = (agent.box.directory / LOG_FILE).read_text()
    assert ("a" * 900 in log, "b" * 900 in log) == (True, False)
    assert adopted.attempt.steps == ["last"]


@pytest.mark.parametrize("secret", ["90210777", "12345678901234567890123", "271828.5"])
async def test_a_secret_that_is_a_number_is_masked_as_one(agent: FakeAgent, secret: str) -> None:
    assert agent.box.secrets is not None
    assert agent.box.exchange is not None
    (agent.box.secrets / "PIN").write_text(secret)
    line = f'{{"step": "pin", "result": [{secret}, 7]}}\n'
    (agent.box.exchange / EVENTS_FILE).write_text(line)
    agent.start()
    await agent.end()
    [step] = agent.attempt.recorded
    assert json.loads(step.body) == ["***", 7]
