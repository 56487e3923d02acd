"""The exchange with an agent that runs: it appends reports to a file, and answers appear as files.

The file is written by what runs in the box, and is not trusted: it may be a link, a pipe, huge, or
garbage. Each line is one report in JSON. Steps and questions have names, so that a worker that
takes a box over reads the file again from its start, and records nothing twice.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from holdfast.errors import BadData, HoldfastError
from holdfast.lifecycle.payload import check_text, decode_body, encode_body
from holdfast.lifecycle.record import ANSWER
from holdfast.ports.box import LOG_FILE, TRUNCATED_FILE, Box
from holdfast.ports.runner import Attempt
from holdfast.runners.command.agent_files import ANSWERS
from holdfast.runners.command.files import write_whole
from holdfast.runners.command.secret_files import read_secret_values
from holdfast.runners.spool import OutputLog
from holdfast.tasks.durable.protocol import (
    QUESTION,
    Entry,
    NotRecorded,
    Recall,
    Recalled,
    RecordQuestion,
    RecordStep,
    Signalled,
    TakeSignal,
)

log = logging.getLogger(__name__)
T = TypeVar("T")

EVENTS_FILE = "events"
POSITION_FILE = "exchange.position"
"""In the box's directory, which the box cannot reach: up to where its reports are dealt with."""
LOOK_SECONDS = 0.2
RETRY_SECONDS = 1.0
"""Before what the store, or this host, could not do is tried again."""
TURN_LINES = 200
"""The lines after which everything else on the event loop has its turn."""
TURN_SECONDS = 0.01
"""Between two chunks of the file: an agent may write faster than they are read."""
PROGRESS_SECONDS = 1.0
"""Between two reports of progress that are recorded; the last one always is."""
LINE_BYTES = 64 * 1024
TOTAL_BYTES = 16 * 1024 * 1024
"""How much of the file is read; what follows is ignored."""
CHUNK_BYTES = 256 * 1024
STEPS = 1000
QUESTIONS = 100
"""How many questions are recorded, and how many are answered by a refusal."""
LOG_BYTES = 1024 * 1024
"""How much an agent may add to its log by reports; what it prints does not count."""
QUESTION_LIMIT = 4000
CHOICES, CHOICE_LIMIT = 20, 200
MESSAGE_LIMIT = 2000
HIDDEN = "***"
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}", re.ASCII)
_NUMBER = re.compile(r"[0-9]+([.][0-9]+)?", re.ASCII)
_LEVELS = ("debug", "info", "warning", "error")
_CLOSED = ("lease_lost", "terminal")


class AgentReport(Struct, frozen=True, kw_only=True):
    """One line of an agent; what it is follows from the field that it has."""

    progress: float | UnsetType = UNSET
    message: str = ""
    log: str | UnsetType = UNSET
    level: str = "info"
    step: str | UnsetType = UNSET
    result: Any = None
    ask: str | UnsetType = UNSET
    question: str = ""
    choices: list[str] = []
    timeout: float | None = None
    """Seconds after which a question is given up."""


class AskedQuestion(Struct, frozen=True):
    """What an answer belongs to: an id alone may be used for another question later."""

    id: str
    text: str


class OpenQuestion(Struct, frozen=True):
    """A question that is not answered yet."""

    id: str
    ends_at: float | None
    """When it is given up, by the monotonic clock."""


class ExchangeClosed(Exception):
    """The job is no longer this attempt's: nothing more is recorded."""


class AgentExchange:
    """Records what one agent reports, and hands it the answers to its questions."""

    def __init__(self, box: Box, attempt: Attempt) -> None:
        """Read nothing yet."""
        self._box = box
        self._attempt = attempt
        self._position = 0
        self._handled = 0
        """Reports before this position were dealt with by an earlier worker."""
        self._rest = b""
        self._recorded: set[tuple[str, int]] = set()
        self._answers: dict[AskedQuestion, bytes] = {}
        """Answers that an earlier worker consumed, and may not have handed over."""
        self._uses: Counter[str] = Counter()
        self._asked: set[AskedQuestion] = set()
        self._open: dict[str, OpenQuestion] = {}
        self._refused: set[str] = set()
        self._undelivered: dict[str, bytes] = {}
        """Answers that could not be written yet."""
        self._progress: Any = None
        self._progress_at = 0.0
        self._garbage = 0
        self._log_used = 0
        self._secrets: list[str] = []
        self._ended = asyncio.Event()
        """Nothing is reported any more: what is there is read once more."""

    async def beside(self, ending: Coroutine[Any, Any, T]) -> T:
        """Wait for the end of a box; what was reported until then is recorded before it returns.

        Trouble with the reports changes nothing in how the box ended.
        """
        running = asyncio.create_task(self.run())
        try:
            ended = await ending
            self._ended.set()
            await asyncio.wait([running])
        finally:
            # It has ended, unless this is cancelled, or the end is not known.
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        return ended

    async def run(self) -> None:
        """Deal with reports and answers, until the box has ended or the job is another's."""
        try:
            await self._recall()
            while not await self._do_round():
                await self._pause(LOOK_SECONDS)
        except ExchangeClosed as closed:
            log.info("%s: its reports are no longer recorded: %s", self._box.name, closed)
        except Exception:  # the edge: its box is watched to its end all the same
            log.exception("%s: its reports cannot be recorded", self._box.name)

    async def _do_round(self) -> bool:
        """Read reports and hand over answers once; return whether it was the last time."""
        is_last = self._ended.is_set()
        try:
            await self._read_reports()
            if is_last:
                self._post_progress()
            else:
                await self._take_answers()
        except ExchangeClosed:
            raise
        except Exception as error:  # noqa: BLE001  the edge: the next round follows, redacted here
            self._count_garbage(repr(error))
        return is_last

    async def _pause(self, seconds: float) -> None:
        """Wait for a moment; no longer than until the box has ended."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._ended.wait(), seconds)

    async def _recall(self) -> None:
        """Learn the secrets and what earlier workers recorded; before that nothing is read."""
        while True:
            try:
                self._secrets = await asyncio.to_thread(self._read_secrets)
                self._handled, self._log_used = await asyncio.to_thread(self._read_position)
                self._learn((await self._ask(Recall(), Recalled)).entries)
                return
            except (OSError, HoldfastError) as error:
                if self._ended.is_set():
                    raise ExchangeClosed(f"what was recorded is not known: {error}") from error
                log.warning("%s: its reports cannot be read yet: %s", self._box.name, error)
                await self._pause(RETRY_SECONDS)

    def _learn(self, entries: Sequence[Entry]) -> None:
        """Note what is recorded; an answer belongs to the question before it."""
        questions: dict[str, AskedQuestion] = {}
        for entry in entries:
            id = entry.name.removeprefix(ANSWER)
            if id == entry.name:
                self._recorded.add((entry.name, entry.use))
            elif entry.kind == QUESTION:
                text = str(decode_body(entry.body)["question"])
                questions[id] = AskedQuestion(id, text)
                self._asked.add(questions[id])
            elif entry.body is not None and id in questions:
                self._answers[questions[id]] = entry.body

    def _read_secrets(self) -> list[str]:
        values = read_secret_values(self._box)
        if values is None:
            raise ExchangeClosed("its secrets are gone, so that reports could not be masked")
        texts = (value.decode(errors="ignore") for value in values)
        return sorted(filter(None, texts), key=len, reverse=True)

    async def _read_reports(self) -> None:
        """Deal with all whole lines that there are; a limit ends it permanently."""
        while self._position < TOTAL_BYTES:
            chunk = await asyncio.to_thread(self._read_chunk)
            if not chunk:
                break
            for number, line in enumerate(self._take_lines(chunk)):
                if number % TURN_LINES == 0:
                    await asyncio.sleep(0 if number else TURN_SECONDS)
                await self._deal_with(line)
        if time.monotonic() >= self._progress_at + PROGRESS_SECONDS:
            self._post_progress()
        try:
            await asyncio.to_thread(self._save_position)
        except OSError as error:
            # An adoption would read them again: lines of the log would be there twice.
            log.debug("%s: its position is not kept: %s", self._box.name, error)

    def _take_lines(self, chunk: bytes) -> list[tuple[int, bytes]]:
        """Return the lines that are whole now, each with where it ends."""
        at = self._position - len(self._rest)
        self._position += len(chunk)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > LINE_BYTES:
            # Its end will be read as a line of its own, and will not be JSON.
            self._rest = b""
            self._count_garbage("a line is too long")
        found = []
        for line in lines:
            at += len(line) + 1
            found.append((at, line))
        return found

    async def _deal_with(self, numbered: tuple[int, bytes]) -> None:
        ends_at, line = numbered
        is_new = ends_at > self._handled
        if not line.strip():
            return
        try:
            report = self._read_report(line)
            await self._record(report, is_new=is_new)
        except ExchangeClosed:
            raise
        except Exception as error:  # noqa: BLE001  the edge: one report, such as on a full disk
            if is_new:
                self._count_garbage(str(error) or repr(error))

    def _read_report(self, line: bytes) -> AgentReport:
        if len(line) > LINE_BYTES:
            raise BadData("a line is too long")
        return msgspec.convert(
            self._redact(msgspec.json.decode(line.decode(errors="replace"))), AgentReport
        )

    async def _record(self, report: AgentReport, *, is_new: bool) -> None:
        """Record a report; one that an earlier worker dealt with only as far as it has a name."""
        if report.step is not UNSET:
            await self._record_step(report.step, report.result)
        elif report.ask is not UNSET:
            await self._record_question(report.ask, report)
        elif report.log is not UNSET:
            if is_new:
                await asyncio.to_thread(self._add_to_log, report.log, report.level)
        elif report.progress is not UNSET:
            if is_new:
                self._note_progress(report.progress, report.message)
        else:
            raise BadData("it has none of progress, log, step and ask")

    async def _record_step(self, name: str, result: Any) -> None:
        check_text(name, "a step's name", limit=200)
        if name.startswith(ANSWER):
            raise BadData(f"a step's name must not start with {ANSWER!r}")
        body = encode_body(result, f"the result of step {name!r}")
        self._uses[name] += 1
        key = name, self._uses[name]
        if key in self._recorded:
            return
        if len(self._recorded) >= STEPS:
            raise BadData(f"there are more than {STEPS} steps")
        self._recorded.add(key)
        await self._ask(RecordStep(*key, body), object)

    async def _record_question(self, id: str, report: AgentReport) -> None:
        if not _ID.fullmatch(id):
            raise BadData("a question's id has 1 to 64 letters, digits, '.', '_' and '-'")
        try:
            await self._put_question(id, report)
        except BadData as error:
            await self._refuse(id, str(error))
            raise

    async def _put_question(self, id: str, report: AgentReport) -> None:
        _check_question(report)
        question = AskedQuestion(id, report.question)
        if (answer := self._answers.pop(question, None)) is not None:
            await self._hand_over(id, answer)
            return
        if question not in self._asked:
            if len(self._asked) >= QUESTIONS:
                raise BadData(f"there are more than {QUESTIONS} questions")
            self._asked.add(question)
            asked: dict[str, Any] = {"question": report.question}
            if report.choices:
                asked["choices"] = report.choices
            await self._ask(RecordQuestion(ANSWER + id, encode_body(asked, "a question")), object)
        limit = report.timeout
        ends_at = None if limit is None else time.monotonic() + max(0.0, limit)
        self._open.setdefault(id, OpenQuestion(id, ends_at))

    async def _refuse(self, id: str, why: str) -> None:
        """Answer a question that is not asked: who asked it waits for a file."""
        if id not in self._open and len(self._refused) < QUESTIONS:
            self._refused.add(id)
            await self._hand_over(id, encode_body({"refused": why}))

    async def _take_answers(self) -> None:
        """Hand over answers that have arrived; give up what was not answered in time."""
        await self._deliver()
        while self._open:
            wanted = tuple(ANSWER + id for id in self._open)
            reply = await self._ask(TakeSignal(wanted), object)
            if not isinstance(reply, Signalled):
                break
            id = (reply.name or "").removeprefix(ANSWER)
            self._open.pop(id, None)
            await self._hand_over(id, reply.body)
        now = time.monotonic()
        for question in list(self._open.values()):
            if question.ends_at is not None and question.ends_at <= now:
                await self._give_up(question)

    async def _give_up(self, question: OpenQuestion) -> None:
        body = encode_body({"timed_out": True})
        await self._ask(RecordStep(ANSWER + question.id, 1, body), object)
        del self._open[question.id]
        await self._hand_over(question.id, body)

    async def _hand_over(self, id: str, body: bytes) -> None:
        """Write an answer now, or later if that fails: its signal is consumed."""
        self._undelivered[id] = body
        if (error := await self._deliver(id)) is not None:
            log.warning("%s: an answer could not be handed over: %s", self._box.name, error)

    async def _deliver(self, *ids: str) -> OSError | None:
        """Write answers that are not written yet, all or these; return why one cannot be."""
        failed = None
        for id in ids or tuple(self._undelivered):
            try:
                await asyncio.to_thread(self._write_answer, id, self._undelivered[id])
            except OSError as error:
                failed = error
            else:
                del self._undelivered[id]
        return failed

    async def _ask(self, request: Any, expected: type[T]) -> T:
        """Make a durable call, and wait for its reply, also while the store does not answer.

        Raise BadData for what the store will never record.
        """
        while True:
            reply = await self._ask_once(request)
            if not isinstance(reply, NotRecorded):
                assert isinstance(reply, expected)
                return reply
            if reply.code in _CLOSED:
                raise ExchangeClosed(reply.message)
            if not reply.again:
                raise BadData(reply.message)
            log.warning("%s: its reports wait for the store: %s", self._box.name, reply.message)
            await asyncio.sleep(RETRY_SECONDS)

    async def _ask_once(self, request: Any) -> Any:
        loop = asyncio.get_running_loop()
        replied: asyncio.Future[Any] = loop.create_future()

        def settle(reply: Any) -> None:
            if not replied.done():
                replied.set_result(reply)

        def answer(reply: Any) -> None:
            loop.call_soon_threadsafe(settle, reply)

        self._attempt.ask(request, answer)
        return await replied

    def _note_progress(self, fraction: float, message: str) -> None:
        if not 0 <= fraction <= 1:
            raise BadData("progress must be from 0 to 1")
        value = {"percent": round(fraction * 100, 1)}
        self._progress = value | ({"message": message[:MESSAGE_LIMIT]} if message else {})

    def _post_progress(self) -> None:
        if self._progress is not None:
            self._attempt.progress(encode_body(self._progress, "progress"))
            self._progress, self._progress_at = None, time.monotonic()

    def _add_to_log(self, text: str, level: str) -> None:
        """Append lines to the job's log, as if the agent had printed them."""
        shown = level if level in _LEVELS else "info"
        data = f"{shown}: {text}\n".encode(errors="replace")
        size = (self._box.directory / LOG_FILE).stat().st_size if self._has_log() else 0
        if len(data) > min(LOG_BYTES - self._log_used, self._box.log_bytes - size):
            (self._box.directory / TRUNCATED_FILE).touch()
            return
        self._log_used += len(data)
        spool = OutputLog(self._box.directory, self._box.log_bytes)
        try:
            spool.write("stdout", data)
        finally:
            spool.close()

    def _has_log(self) -> bool:
        return (self._box.directory / LOG_FILE).exists()

    def _redact(self, value: Any) -> Any:
        """Return a value without the secrets of the box: what is reported is kept for long."""
        match value:
            case str():
                for secret in self._secrets:
                    value = value.replace(secret, HIDDEN)
                return value
            case list():
                return [self._redact(one) for one in value]
            case dict():
                return {self._redact(name): self._redact(one) for name, one in value.items()}
            case int() | float() if self._is_secret(value):
                return HIDDEN
            case _:
                return value

    def _is_secret(self, number: float) -> bool:
        """Return whether a number shows a secret that has only digits."""
        return any(
            secret in str(number) or float(secret) == number
            for secret in self._secrets
            if _NUMBER.fullmatch(secret)
        )

    def _count_garbage(self, why: str) -> None:
        self._garbage += 1
        # Once, and then ever more rarely: an agent may write nothing else.
        if self._garbage & (self._garbage - 1) == 0:
            text = self._redact(why)[:200]
            log.warning("%s: %d reports are not valid: %s", self._box.name, self._garbage, text)

    def _open_exchange(self) -> int:
        assert self._box.exchange is not None
        return os.open(self._box.exchange, os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def _read_chunk(self) -> bytes:
        """Return what was appended to the file, if it is a file at all."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
        try:
            directory = self._open_exchange()
            try:
                file = os.open(EVENTS_FILE, flags, dir_fd=directory)
            finally:
                os.close(directory)
            try:
                if not stat.S_ISREG(os.fstat(file).st_mode):
                    return b""
                return os.pread(file, CHUNK_BYTES, self._position)
            finally:
                os.close(file)
        except OSError:
            # Not there yet, or a link: it may become a file.
            return b""

    def _write_answer(self, id: str, body: bytes) -> None:
        """Write an answer, whole or not at all. The box owns the directory, and may replace it."""
        exchange = self._open_exchange()
        try:
            with suppress(FileExistsError):
                os.mkdir(ANSWERS, 0o755, dir_fd=exchange)
            flags = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            answers = os.open(ANSWERS, flags, dir_fd=exchange)
        finally:
            os.close(exchange)
        try:
            _write_whole(answers, id, body)
        finally:
            os.close(answers)

    def _read_position(self) -> tuple[int, int]:
        """Return up to where reports were dealt with, and how much they added to the log."""
        try:
            handled, used = (self._box.directory / POSITION_FILE).read_text().split()
            return int(handled), int(used)
        except (OSError, ValueError):
            return 0, 0

    def _save_position(self) -> None:
        """Note up to where reports are dealt with; not before progress is posted."""
        handled = self._position - len(self._rest)
        if handled > self._handled and self._progress is None:
            noted = f"{handled} {self._log_used}".encode()
            write_whole(self._box.directory / POSITION_FILE, noted)
            self._handled = handled


def _check_question(report: AgentReport) -> None:
    check_text(report.question, "a question", limit=QUESTION_LIMIT)
    if len(report.choices) > CHOICES:
        raise BadData(f"a question has at most {CHOICES} choices")
    for choice in report.choices:
        check_text(choice, "a choice", limit=CHOICE_LIMIT)


def _write_whole(directory: int, name: str, body: bytes) -> None:
    temporary = f".{name}.new"
    with suppress(FileNotFoundError):
        os.unlink(temporary, dir_fd=directory)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.open(temporary, flags, 0o644, dir_fd=directory)
    with os.fdopen(file, "wb") as opened:
        # Whatever the umask of the worker: the box's own user reads it.
        os.fchmod(opened.fileno(), 0o644)
        opened.write(body)
    os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
