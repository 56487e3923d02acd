"""Work in a thread has ended when its caller goes on, however often that one is cancelled."""

import asyncio
import threading

import pytest

from holdfast.ports.threads import to_end


async def test_a_caller_that_is_cancelled_twice_waits_for_its_thread() -> None:
    started, gate, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        started.set()
        gate.wait(30)
        ended.set()
        raise OSError("seen by nobody")

    calling = asyncio.create_task(to_end(work))
    await asyncio.to_thread(started.wait, 30)
    for _ in range(3):
        calling.cancel()
        await asyncio.wait({calling}, timeout=0.01)
    assert not calling.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert ended.is_set()
