"""Attempts: how a claimed job is run, asked to stop, killed, and what it then ends with.

An attempt runs in a task on the event loop, whatever runs its handler. Cancelling the task is the
kill; the attempt ends only once nothing of the handler runs any more, and only then is its end
posted. Attempts whose handlers never give way follow each other in one task.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import types
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context as Variables
from contextvars import copy_context
from functools import partial
from inspect import CORO_CREATED, getcoroutinestate
from typing import Any, Protocol, cast

from msgspec import Struct
from msgspec.structs import replace

from holdfast.context import TRACEPARENT, Context, current_context
from holdfast.durable.messages import Reply, Request
from holdfast.errors import BadData, HoldfastError, UnfitResult, ValidationError
from holdfast.flow.finish import after_error, after_shutdown, after_timeout
from holdfast.identity import mint_request
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.payload import Body
from holdfast.lifecycle.routes import offer
from holdfast.lifecycle.states import Link
from holdfast.lifecycle.terms import corrected_policy, correction_reason
from holdfast.points import reach
from holdfast.ports import HIGHEST_LEVEL, LogEntry
from holdfast.services.desk import Desk
from holdfast.services.failures import Failures
from holdfast.services.held import START, Held
from holdfast.services.journal import Journal
from holdfast.tasks import Mode, Task
from holdfast.telemetry import Meters
from holdfast.telemetry.tracing import UNTRACED, Span, is_traced, run_span

log = logging.getLogger(__name__)

TURN_SECONDS = 0.001
"""How long attempts follow each other before all else that waits for the event loop has its turn.
Short, because it may be the answer to a commit: until it is read the database is idle."""
KILL_PATIENCE_SECONDS = 2.0
"""How long a killed handler may take to be dead before the record says that it cannot be killed."""


# Named once: reading a member off an enum's class costs as much as a call (Python 3.11).
_ASYNC, _COMPENSATION = Mode.ASYNC, Link.COMPENSATION


class Children(Protocol):
    """What runs handlers in processes of their own."""

    async def run(self, task: Task[Any, Any], ctx: Context, body: bytes | None) -> Body:
        """Run the handler; cancelling the wait kills it, and ends only once it is dead."""

    async def close(self) -> None:
        """Let no child survive."""


class Attempts:
    """The attempts of one worker that are under way."""

    def __init__(
        self,
        desk: Desk,
        meters: Meters,
        *,
        concurrency: int,
        journal: Journal,
        failures: Failures,
        children: Children,
        jitter: Callable[[], float],
        on_end: Callable[[Held], None],
        keep_log: Callable[[LogEntry], None] = lambda entry: None,
        follow: Callable[[], Held | None] = lambda: None,
        on_free: Callable[[], None] = lambda: None,
    ) -> None:
        """Run up to `concurrency` at a time; the caller counts.

        `keep_log` is handed each line that a handler logs. After an attempt's end `follow` is
        asked for the next; where that cannot be run in the same task, the caller hears by
        `on_free` that it may begin another.
        """
        self.running: set[Held] = set()
        self._desk = desk
        self._meters = meters
        self._journal = journal
        self._failures = failures
        self._asking: set[asyncio.Task[None]] = set()
        self._children = children
        self._jitter = jitter
        self._on_end = on_end
        self._keep_log = keep_log
        self._follow = follow
        self._on_free = on_free
        self._turn_ends_at: float | None = None
        self._threads = ThreadPoolExecutor(concurrency, thread_name_prefix="holdfast handler")
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._context = copy_context()
        self._closed = False
        self._alarm: asyncio.TimerHandle | None = None

    def on_loop(self) -> bool:
        """Whether the caller runs on the worker's event loop."""
        return threading.get_ident() == self._thread_id

    def soon(self, what: Callable[..., None], *args: Any) -> None:
        """Have something done on the event loop. From any thread."""
        self._loop.call_soon_threadsafe(what, *args)

    def begin(self, held: Held) -> None:
        """Run a claimed job, and those that follow it."""
        self.running.add(held)
        held.attempt_task = self._loop.create_task(self._work(held), context=self._context.copy())

    async def _work(self, held: Held) -> None:
        """Run attempts, one after the other, while it is their turn."""
        task, held.attempt_task = held.attempt_task, None
        following: Held | None = held
        try:
            while following is not None:
                held = following
                before = None if task is None else _marks(task)
                held.attempt_task = task
                await self._run(held)
                # In the task of a handler that waited, spoilt it or told others of it no other
                # runs: what is done to that task later is meant for a job that has ended.
                if held.waited or task is None or _marks(task) != before:
                    break
                if not await self._give_way():
                    break
                following = self._follow()
                if following is not None:
                    self.running.add(following)
        finally:
            self._on_free()

    async def _give_way(self) -> bool:
        """Let all else have its turn if it is time for that; tells whether to go on after it."""
        if self._turn_over():
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                # By somebody who knew the task from a job that it ran: it holds none now.
                return False
        return True

    def _turn_over(self) -> bool:
        """Whether others on the event loop have waited long enough."""
        if self._turn_ends_at is None:
            self._turn_ends_at = time.monotonic() + TURN_SECONDS
            self._loop.call_soon(self._next_turn)
            return False
        return time.monotonic() > self._turn_ends_at

    def _next_turn(self) -> None:
        self._turn_ends_at = None

    async def _run(self, held: Held) -> None:
        """Run one attempt to its end."""
        if held.task is None:
            self._end(held, _given_back(held))
            return
        failed: BaseException | None = None
        try:
            # In a copy of the worker's context, not of the task's: another attempt ran in that
            # before, and what one handler sets must not be seen by the next.
            command = await _inside(self._context.copy(), self._attempt(held), held)
        except BaseException as error:  # noqa: BLE001  the attempt's edge: the job must end
            failed, command = error, self._after(held, error)
        self._end(held, command, failed)

    def _end(
        self, held: Held, command: c.Command | None, error: BaseException | None = None
    ) -> None:
        """Post what an attempt ends with; its slot is free."""
        try:
            if command is not None:
                self._desk.post(held, command)
                if type(command) is not c.Complete:
                    self._failures.ended(held, command, error)
            reach("finish.posted")
        finally:
            # Whatever went wrong: a slot that stays taken would never run a job again.
            self.running.discard(held)
            self._on_end(held)
            # Each knows the other: nobody else would take them apart, see `Held`.
            held.context = held.attempt_task = None

    async def _attempt(self, held: Held) -> c.Command | None:
        """Check, start and call; tells the command that ends the attempt."""
        task = held.task
        assert task is not None
        if held.record.policy != task.policy:
            await self._correct_terms(held, task)
        undoes = held.record.link_kind is _COMPENSATION
        if undoes:
            await self._journal.retell(held, task.undoing_here().steps)
        arguments, named = ((), {}) if undoes else task.bind(held.claimed.body)
        reach("attempt.bound")
        ctx = self._begun(held)
        if not (held.record.policy.idempotent and held.record.failures == 0):
            # What must not run twice, or has failed before, acts only once its start is durable.
            await held.confirmed()
            if held.gone:
                return None
        reach("handler.entering")
        if task.takes_context:
            arguments = (ctx, *arguments)
        with _span(held):
            try:
                if task.mode is _ASYNC and not undoes:
                    value = await task.fn(*arguments, **named)
                else:
                    value = await self._call(held, task, ctx, arguments, named)
            finally:
                if ctx.is_durable:
                    await ctx.rest(killed=held.killed_at > 0)
        reach("handler.returned")
        if held.gone:
            return None
        ctx.finish()
        if held.stop_reason in ("timeout", "deadline"):
            return self._after(held, None)
        if undoes:
            await self._journal.note_compensated(held)
        return c.Complete(actor=held.actor, body=_packed(task, value))

    async def _correct_terms(self, held: Held, task: Task[Any, Any]) -> None:
        """Give a job its task's terms where its own are weaker; return once that is durable."""
        before, created = held.record.policy, held.claimed.created
        policy = corrected_policy(held.record, created, task.policy)
        if policy is None:
            return
        command = c.CorrectTerms(
            actor=held.actor,
            policy=policy,
            reason=correction_reason(before, policy),
            request_id=mint_request(),
        )
        refusal = await self._desk.ask(held, command)
        if refusal is not None:
            raise ValidationError(f"its terms could not be corrected: {refusal.message}")
        held.claimed = replace(held.claimed, job=replace(held.claimed.job, policy=policy))

    def _begun(self, held: Held) -> Context:
        """Note the beginning, and make what the handler sees."""
        record = held.record
        held.begun_at = time.monotonic()
        timeout = record.policy.timeout
        ends_at = None if timeout is None else held.begun_at + timeout / 1e6
        if held.deadline_at is not None:
            ends_at = held.deadline_at if ends_at is None else min(ends_at, held.deadline_at)
        ctx = held.context = Context(
            held.claimed,
            _Link(self, held),
            attempt=record.attempt,
            epoch=record.epoch or 1,
            ends_at=ends_at,
        )
        if ends_at is not None:
            self._watch(ends_at)
        current_context.set(ctx)
        self._desk.post(held, START)
        reach("start.posted")
        return ctx

    async def _call(
        self,
        held: Held,
        task: Task[Any, Any],
        ctx: Context,
        arguments: tuple[Any, ...],
        named: dict[str, Any],
    ) -> Any:
        if held.record.link_kind is _COMPENSATION and task.mode is not Mode.PROCESS:
            return await task.call(ctx, held.claimed.body)
        if task.mode is _ASYNC:
            return await task.fn(*arguments, **named)
        if task.mode is Mode.PROCESS:
            return await self._children.run(task, ctx, held.claimed.body)
        return await self._in_thread(partial(task.fn, *arguments, **named))

    async def _in_thread(self, call: Callable[[], Any]) -> Any:
        """Call in a thread. A thread cannot be killed: its end is waited for, cancelled or not."""
        future = self._loop.run_in_executor(self._threads, copy_context().run, call)
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError:
                if self._closed:
                    raise
        return future.result()

    def stop(self, held: Held, reason: str, *, grace_seconds: float = 0.0) -> None:
        """Ask a running attempt to end, and kill it after the grace. The first reason stands."""
        # A lost lease ends all other reasons: nothing may be written any more.
        if held.stop_reason is None or reason == "lease_lost":
            held.stop_reason = reason
        if held.context is not None:
            held.context.cancelled.set(reason)
        if grace_seconds:
            self._loop.call_later(grace_seconds, self._kill, held)
        else:
            self._kill(held)

    def _kill(self, held: Held) -> None:
        if held not in self.running or held.attempt_task is None:
            return
        held.killed_at = time.monotonic()
        if held.context is not None:
            held.context.cancelled.killed = True
        held.attempt_task.cancel()
        if getcoroutinestate(cast(Any, held.attempt_task.get_coro())) == CORO_CREATED:
            # Cancelled before its first step it never takes one: nobody else would end it.
            self._end(held, self._after(held, asyncio.CancelledError()))
            self._on_free()
            return
        self._loop.call_later(KILL_PATIENCE_SECONDS, self._check_dead, held)

    def _check_dead(self, held: Held) -> None:
        """Say of a handler that survived its kill that it did; try again now and then."""
        if held not in self.running:
            return
        if not held.unkillable:
            held.unkillable = True
            self._meters.unkillable += 1
            log.error("job %s cannot be killed: its handler runs on", held.record.public_id)
            self._desk.post(held, c.Progress(actor=held.actor, unkillable=True))
        self._kill(held)

    def _after(self, held: Held, error: BaseException | None) -> c.Command | None:
        """Say how an attempt ends that was stopped, or whose handler raised."""
        actor, record = held.actor, held.record
        started = held.context is not None
        match held.stop_reason:
            case _ if held.gone:
                return None
            case "lease_lost":
                return None
            case "cancel":
                return c.Cancel(actor=actor)
            case "timeout":
                return after_timeout(record, actor, claimed=held.claimed, jitter=self._jitter())
            case "deadline":
                return c.TimeOut(actor=actor, error_code="deadline", reason="deadline passed")
            case "shutdown" if isinstance(error, asyncio.CancelledError):
                return after_shutdown(record, actor, started=started)
            case _:
                cause = error or HoldfastError("ended without a word")
                return after_error(
                    record,
                    actor,
                    cause,
                    claimed=held.claimed,
                    started=started,
                    jitter=self._jitter(),
                )

    def progress(self, held: Held, body: Body) -> None:
        """Post how far a handler is; what it said before and is not yet written is replaced.

        Not once it has ended: what it left running must not speak over its outcome.
        """
        if held not in self.running:
            return
        command = c.Progress(actor=held.actor, body=body)
        last = len(held.commands) - 1
        before = held.commands[last] if last >= held.in_flight else None
        if isinstance(before, c.Progress) and not before.unkillable:
            held.commands[last] = command
        else:
            self._desk.post(held, command)

    def heartbeat(self, held: Held) -> None:
        """Post a renewal in the handler's own name."""
        if held not in self.running:
            return
        self._desk.post(held, c.Heartbeat(actor=held.actor, by_handler=True))

    def log(self, held: Held, level: int, line: str) -> None:
        """Have a line of a handler's log kept; also what it says once its attempt has ended."""
        job = held.claimed.job
        self._keep_log(
            LogEntry(
                id=job.id,
                attempt=job.attempt,
                at=time.time_ns() // 1000,
                level=min(max(level, 0), HIGHEST_LEVEL),
                message=line,
            )
        )

    def ask(self, held: Held, request: Request, answer: Callable[[Reply], None]) -> None:
        """Have something recalled or remembered for a handler."""
        work = self._loop.create_task(self._journal.answer(held, request, answer))
        self._asking.add(work)
        work.add_done_callback(self._asking.discard)

    def _watch(self, ends_at: float) -> None:
        """Look at the clock when the first attempt's time is up: one timer for all of them."""
        if self._alarm is None or ends_at < self._alarm.when():
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm = self._loop.call_at(ends_at, self._time_up)

    def _time_up(self) -> None:
        """Stop every attempt whose time is up, and watch for the next."""
        self._alarm = None
        now = time.monotonic()
        for held in list(self.running):
            ends_at = None if held.context is None else held.context.ends_at
            if ends_at is None or held.stop_reason is not None:
                continue
            if ends_at <= now:
                past_deadline = held.deadline_at is not None and held.deadline_at <= now
                self.stop(held, "deadline" if past_deadline else "timeout")
            else:
                self._watch(ends_at)

    async def close(self) -> None:
        """Let go of threads and children; what cannot be killed is left behind."""
        self._closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)
        await self._children.close()


@types.coroutine
def _inside(
    variables: Variables, work: Coroutine[Any, Any, c.Command | None], held: Held
) -> Generator[Any, Any, c.Command | None]:
    """Do work in a context of its own, in whatever task awaits this."""
    step: Callable[[Any], Any] = work.send
    value: Any = None
    while True:
        try:
            awaited = variables.run(step, value)
        except StopIteration as end:
            ended: c.Command | None = end.value
            return ended
        held.waited = True
        try:
            step, value = work.send, (yield awaited)
        except GeneratorExit:
            variables.run(work.close)
            raise
        except BaseException as error:  # noqa: BLE001  it is the work's to handle
            step, value = work.throw, error


class _Link(Struct, gc=False):
    """How a context reaches its worker from any thread."""

    _attempts: Attempts
    _held: Held

    def progress(self, body: Body) -> None:
        self._say(self._attempts.progress, body)

    def heartbeat(self) -> None:
        self._say(self._attempts.heartbeat)

    def log(self, level: int, line: str) -> None:
        self._say(self._attempts.log, level, line)

    def ask(self, request: Request, answer: Callable[[Reply], None]) -> None:
        self._say(self._attempts.ask, request, answer)

    def _say(self, what: Callable[..., None], *more: Any) -> None:
        # On the loop at once: what follows in the handler may be its end.
        if self._attempts.on_loop():
            what(self._held, *more)
        else:
            self._attempts.soon(what, self._held, *more)


def _span(held: Held) -> Span:
    """Let the handler be a child of what submitted its job."""
    job, traceparent = held.claimed.job, held.claimed.created.env.get(TRACEPARENT)
    if not is_traced(traceparent):
        return UNTRACED
    return run_span(job.task, traceparent, job.public_id, job.attempt, queue=job.queue)


def _given_back(held: Held) -> c.Release:
    """Give back a job whose task this worker does not have, or not in its version."""
    wanted = offer(held.record.task, held.record.task_version)
    return c.Release(actor=held.actor, reason=f"this worker has no task {wanted}", unserved=True)


def _packed(task: Task[Any, Any], value: Any) -> Body:
    """Write a result down."""
    try:
        return task.pack_result(value)
    except BadData as error:
        raise UnfitResult(f"the result of {task.name} cannot be kept: {error}") from error


def _marks(task: asyncio.Task[None]) -> tuple[int, int, bool, int]:
    """Tell what is otherwise of a task once a handler has spoilt it or told others of it.

    It has one more reference if it, or its `cancel`, was kept. A cancel that was taken back may
    still strike at the next wait.
    """
    return (
        sys.getrefcount(task),
        task.cancelling(),
        getattr(task, "_must_cancel", False),
        len(getattr(task, "_callbacks", None) or ()),
    )
