"""A signal that a running job takes: it is consumed only with what it says in hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from holdfast.errors import StoreUnavailable
from holdfast.tasks.durable.protocol import NotRecorded, Reply, Signalled, TakeSignal
from holdfast.telemetry import Meters
from holdfast.worker.durable_calls import DurableCalls


class FailingOnce:
    """A store with one signal, which cannot be read at first."""

    def __init__(self) -> None:
        self.reads = 0

    async def events(self, *_: Any, **__: Any) -> list[Any]:
        """Fail once, then return the event of the signal."""
        self.reads += 1
        if self.reads == 1:
            raise StoreUnavailable("the store does not answer")
        return [SimpleNamespace(body=b'"yes"', facts=SimpleNamespace(signal="answer:q"))]


class Consuming:
    """A queue of commands that writes each at once."""

    def __init__(self) -> None:
        self.consumed: list[str] = []

    async def ask(self, _: Any, command: Any) -> None:
        """Write it."""
        self.consumed.append(command.consumes)


async def test_a_signal_that_cannot_be_read_is_not_consumed() -> None:
    store, commands = FailingOnce(), Consuming()
    calls = DurableCalls(cast("Any", store), cast("Any", commands), Meters())
    pending = SimpleNamespace(name="answer:q", rev=3)
    owned = cast(
        "Any",
        SimpleNamespace(
            record=SimpleNamespace(unread_signals=False, signals=[pending]),
            claimed=SimpleNamespace(id=None),
            actor=None,
        ),
    )
    replies: list[Reply] = []
    await calls.answer(owned, TakeSignal(("answer:q",)), replies.append)
    assert commands.consumed == []
    await calls.answer(owned, TakeSignal(("answer:q",)), replies.append)
    assert commands.consumed == ["answer:q"]
    text = "the store does not answer"
    again = NotRecorded("store_unavailable", text, again=True)
    assert replies == [again, Signalled(b'"yes"', "answer:q")]
