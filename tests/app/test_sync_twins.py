"""Everything that a program with a loop can await, one without a loop can call."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from holdfast import Client, Holdfast
from holdfast.errors import BadTask, Refused
from holdfast.tasks.handles import JobHandle, PendingHandle
from holdfast.tasks.tasks import Task

INNER = {"operations", "store", "parent_id", "published", "close", "watch"}
"""Not for users, or with a name of its own."""


@pytest.mark.parametrize("kind", [Holdfast, Client, JobHandle, Task, PendingHandle])
def test_each_method_that_is_awaited_has_a_twin_that_blocks(kind: type[Any]) -> None:
    awaited = {
        name
        for name, member in inspect.getmembers(kind)
        if not name.startswith("_")
        and (inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member))
    }
    missing = {name for name in awaited - INNER if not hasattr(kind, f"{name}_sync")}
    assert missing == set()


def test_the_twins_of_an_app_do_what_they_say(tmp_path: Any) -> None:
    app = Holdfast(str(tmp_path / "jobs.db"))

    @app.task
    async def add(a: int, b: int) -> int:
        return a + b

    try:
        one, two = app.submit_many_sync([add.prepare(1, 2), add.prepare(3, 4)])
        assert [job.id for job in app.jobs_sync(task="add")] == [two.id, one.id]
        assert app.pause_sync("default", reason="a test").paused_at is not None
        assert "queue_paused" in [app.why_sync(one).reason.code]
        assert app.resume_sync("default").paused_at is None
        assert app.cancel_sync(one.id).state == "cancelled"
        assert [event.type for event in one.events_sync()] == ["job_created", "job_cancelled"]
        assert (one.retried_as_sync(), one.progress_sync()) == (None, None)
        with pytest.raises(Refused, match="only failed and dead-lettered jobs"):
            one.redrive_sync()
    finally:
        app.close_sync()


def test_calling_a_task_says_what_to_do_instead() -> None:
    app = Holdfast()

    @app.task
    async def resize(path: str) -> str:
        return path

    with pytest.raises(TypeError, match=r"resize\.submit\(…\).*resize\.fn\(…\) calls the plain"):
        resize("a.png")
    with pytest.raises(BadTask, match="a task is a function"):
        app.task(resize)
