"""Tasks: what registration takes, and what it refuses."""

from __future__ import annotations

import functools
from datetime import timedelta
from typing import Any

import pytest

import holdfast
from holdfast import Backoff, Context, Holdfast
from holdfast.errors import BadTask, TransientError, ValidationError
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.states import Priority
from holdfast.lifecycle.times import SECOND
from holdfast.tasks.tasks import Mode, make_task
from tests.app.acts import context


@pytest.fixture
def app() -> Holdfast:
    """An app that is never opened."""
    return Holdfast(":memory:")


def test_a_plain_task_has_the_plain_terms(app: Holdfast) -> None:
    @app.task
    async def greet(name: str) -> str:
        return name

    assert (greet.name, greet.queue, greet.priority) == ("greet", "default", Priority.INTERACTIVE)
    assert greet.policy == Policy(max_attempts=4, idempotent=True)
    assert (greet.mode, greet.start_folds, greet.cancel_grace_seconds) == (Mode.ASYNC, True, 10.0)
    assert app.tasks["greet"] is greet


@pytest.mark.req("B10", "B11")
def test_every_option_reaches_the_terms(app: Holdfast) -> None:
    @app.task(
        name="images.thumbnail",
        queue="images",
        priority="batch",
        needs=["gpu"],
        retries=5,
        backoff=Backoff("1s", 3, timedelta(minutes=5)),
        timeout="5m",
        start_timeout=30,
        lease="45s",
        heartbeat="20s",
        on_exhausted="fail",
        letter_on_fail=True,
        idempotent=False,
        isolate="process",
        cancel_grace="1m",
    )
    def thumbnail(image: str) -> None: ...

    assert thumbnail.policy == Policy(
        max_attempts=6,
        idempotent=False,
        on_exhausted="fail",
        letter_on_fail=True,
        backoff_first=SECOND,
        backoff_factor=3.0,
        backoff_max=300 * SECOND,
        lease=45 * SECOND,
        heartbeat=20 * SECOND,
        start_timeout=30 * SECOND,
        timeout=300 * SECOND,
    )
    assert (thumbnail.name, thumbnail.queue, thumbnail.priority, thumbnail.needs) == (
        "images.thumbnail",
        "images",
        Priority.BATCH,
        frozenset({"gpu"}),
    )
    assert (thumbnail.mode, thumbnail.start_folds, thumbnail.cancel_grace_seconds) == (
        Mode.PROCESS,
        False,
        60.0,
    )


def test_a_backoff_that_is_a_span_does_not_grow(app: Holdfast) -> None:
    @app.task(backoff="10s")
    def steady() -> None: ...

    policy = steady.policy
    assert (policy.backoff_first, policy.backoff_factor, policy.backoff_max) == (
        10 * SECOND,
        1.0,
        10 * SECOND,
    )


@pytest.mark.req("B7")
@pytest.mark.parametrize(
    "options",
    [{"lease": "10s"}, {"lease": "5m"}, {"heartbeat": "2s"}, {"heartbeat": "1m"}],
)
def test_a_lease_whose_renewals_cannot_keep_up_is_refused(
    app: Holdfast, options: dict[str, Any]
) -> None:
    with pytest.raises(BadTask, match=r"task 'work': (lease|heartbeat) must be between"):
        app.register(lambda: None, {"name": "work", **options})  # type: ignore[typeddict-item]
    tests = Holdfast(":memory:", unbounded_leases=True)
    tests.register(lambda: None, {"name": "work", **options})  # type: ignore[typeddict-item]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout": "5 minutes"}, "timeout must be a span"),
        ({"timeout": 0}, "timeout must be positive"),
        ({"lease": None}, "lease must be a span"),
        ({"retries": -1}, "retries must be a whole number"),
        ({"retries": True}, "retries must be a whole number"),
        ({"retries": 2_000_000}, "at most"),
        ({"backoff": Backoff("1s", 0.5)}, "factor >= 1"),
        ({"backoff": Backoff("1s", float("nan"))}, "factor >= 1"),
        ({"backoff": Backoff("1s", "2")}, "factor must be a number"),  # type: ignore[arg-type]
        ({"priority": "urgent"}, "priority must be one of"),
        ({"needs": "gpu"}, "needs must be a set of names"),
        ({"needs": [1]}, "must be text"),
        ({"on_exhausted": "drop"}, "on_exhausted must be"),
        ({"idempotent": 1}, "idempotent must not be a int"),
        ({"isolate": "thread"}, "isolate must be None or 'process'"),
        ({"cancel_grace": -1}, "cancel_grace must be"),
        ({"queue": ""}, "queue must not be empty"),
        ({"name": "x" * 201}, "the limit is 200"),
        ({"retrys": 3}, "no option 'retrys'; there are name, version, queue"),
    ],
)
def test_a_bad_option_is_named_at_registration(
    app: Holdfast, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadTask, match=message) as caught:
        app.register(lambda: None, {"name": "work", **options})  # type: ignore[typeddict-item]
    assert caught.value.code == "bad_task"


def test_a_name_stands_for_one_function(app: Holdfast) -> None:
    @app.task
    def send() -> None: ...

    with pytest.raises(BadTask, match=r"there is a task 'send' already.*name of its own"):
        app.task(name="send")(lambda: None)
    assert app.tasks["send"] is send
    assert list(app.tasks) == ["send"]


def numbers() -> Any:
    yield 1


async def many_numbers() -> Any:
    yield 1


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (lambda: None, "has no name of its own"),
        (functools.partial(print), "has no name of its own"),
        (3, "a task is a function"),
        (numbers, "yields"),
        (many_numbers, "yields"),
    ],
)
def test_what_is_no_function_is_refused(app: Holdfast, fn: Any, message: str) -> None:
    with pytest.raises(BadTask, match=message):
        app.task(fn)


class Mailer:
    """Something with methods."""

    def send(self, to: str) -> str:
        """Send."""
        return f"sent to {to}"


class Callable_:
    """Something that is called like a coroutine function."""

    async def __call__(self, n: int) -> int:
        """Answer."""
        return n


def test_bound_methods_and_callable_objects_are_functions_too(app: Holdfast) -> None:
    send = app.task(Mailer().send)
    assert send.call(context(), b'{"to":"ann"}') == "sent to ann"
    assert app.task(name="call")(Callable_()).mode is Mode.ASYNC


def test_a_call_hands_the_context_over_where_it_is_wanted(app: Holdfast) -> None:
    @app.task
    def with_context(ctx: Context, n: int) -> Any:
        return ctx.attempt, n

    @app.task
    def without(n: int) -> Any:
        return n

    assert with_context.call(context(), b'{"n":2}') == (1, 2)
    assert without.call(context(), b'{"n":2}') == 2
    assert without.bind(b'{"n":2}') == ((), {"n": 2})
    with pytest.raises(ValidationError, match=r"without\(\).*n: "):
        without.bind(b'{"n":"two"}')


async def test_a_task_of_no_app_says_so() -> None:
    task = make_task(lambda: None, {"name": "alone"})
    with pytest.raises(BadTask, match="belongs to no app"):
        await task.submit()


def test_handlers_raise_errors_with_a_message_alone() -> None:
    assert str(holdfast.TransientError("later")) == "later"
    assert TransientError("later").retry_in is None
    assert TransientError("later", retry_in="1m30s").retry_in == 90.0
    assert holdfast.PermanentError("never").code == "permanent"
    assert holdfast.ValidationError("bad").code == "validation_failed"
    with pytest.raises(ValueError, match="retry_in must be a span"):
        TransientError("later", retry_in="soon")


def test_the_front_door_names_what_it_offers() -> None:
    assert {name: getattr(holdfast, name) for name in holdfast.__all__}
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        holdfast.Nothing  # noqa: B018
