"""The options of a task and of one submission: read from what a user gives, in the law's terms."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Literal, TypedDict
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from holdfast.durations import Span, span_micros, span_seconds
from holdfast.errors import BadData, BadTask, about
from holdfast.lifecycle.execution_policy import DEFAULT_POLICY, Policy, faults_text, policy_faults
from holdfast.lifecycle.payload import check_labels, check_text, check_time
from holdfast.lifecycle.routes import ADAPTER_PREFIX, check_task, check_version
from holdfast.lifecycle.states import KNOWN, Priority, State
from holdfast.lifecycle.terms import POLICY_FIELDS
from holdfast.lifecycle.times import HORIZON, LONGEST_SPAN, After, Time

CANCEL_GRACE_SECONDS = 10.0
"""How long a handler may take to end after it was asked to stop."""
NEED_LIMIT = 200
"""Characters of the name of a need."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Backoff(Struct, frozen=True):
    """How long to wait before the next try: `first`, then `factor` times as long, up to `max`."""

    first: Span = "500ms"
    factor: float = 2.0
    max: Span = "60s"


class TaskOptions(TypedDict, total=False):
    """What `@app.task(…)` takes."""

    name: str
    version: str | int | None
    queue: str
    priority: Priority | Literal["interactive", "batch", "critical"]
    needs: Iterable[str]
    retries: int
    backoff: Backoff | Span
    timeout: Span | None
    start_timeout: Span | None
    lease: Span
    heartbeat: Span
    on_exhausted: Literal["dead_letter", "fail"]
    letter_on_fail: bool
    idempotent: bool
    isolate: Literal["process"] | None
    cancel_grace: Span
    compensate: Callable[..., Any] | None
    compensate_steps: Mapping[str, Callable[..., Any]]


class JobOptions(TypedDict, total=False):
    """What `task.options(…)` takes: of one submission, or of several."""

    delay: Span
    run_at: datetime | int
    deadline: Span | datetime
    job_id: str
    request_id: str
    client_job_id: str
    dedupe_key: str
    unique: Literal["live"] | None
    parent: Any
    workflow_id: str
    step_index: int
    correlation_id: str
    tenant: str
    labels: Mapping[str, str]
    env: Mapping[str, str]
    context_ptr: str
    adapter_id: str
    queue: str
    priority: Priority | Literal["interactive", "batch", "critical"]
    needs: Iterable[str]
    retries: int
    backoff: Backoff | Span
    timeout: Span | None
    start_timeout: Span | None


class ReadTaskOptions(Struct, frozen=True, kw_only=True):
    """A task's options, read."""

    version: str | None
    """Which version of its code this is; its jobs go to no other."""
    queue: str
    priority: Priority
    needs: frozenset[str]
    policy: Policy
    process: bool
    cancel_grace_seconds: float


def read_task_options(task: str, options: TaskOptions, *, bounded: bool = True) -> ReadTaskOptions:
    """Read a task's options; BadTask names whatever is wrong with them (B7)."""
    try:
        check_known(options, TaskOptions)
        policy = _change_policy(DEFAULT_POLICY, options)
        terms = ReadTaskOptions(
            version=_version(options.get("version")),
            queue=check_text(options.get("queue", "default"), "queue", limit=200),
            priority=_read_priority(options.get("priority", Priority.INTERACTIVE)),
            needs=_needs(options.get("needs", ())),
            policy=policy,
            process=_isolated(options.get("isolate")),
            cancel_grace_seconds=span_seconds(
                options.get("cancel_grace", CANCEL_GRACE_SECONDS), "cancel_grace"
            ),
        )
        check_task(task)
    except (ValueError, BadData) as error:
        raise BadTask(f"task {task!r}: {error}") from error
    if faults := policy_faults(policy, bounded=bounded):
        raise BadTask(f"task {task!r}: {faults_text(faults)}")
    return terms


def read_job_options(options: JobOptions, policy: Policy) -> dict[str, Any]:
    """Read the options of a submission into the fields of `lifecycle.submit.Submission`."""
    if not options:
        return {}
    check_known(options, JobOptions)
    fields = {name: options[name] for name in _PLAIN if name in options}  # type: ignore[literal-required]
    for name, field, read in _READ:
        if name in options:
            with _name_option_in_errors(name):
                fields[field] = read(options[name])  # type: ignore[literal-required]
    if "delay" in options and "run_at" in options:
        raise BadData("give a delay or a run_at, not both", field="run_at")
    if not _POLICY_WORDS.isdisjoint(options):
        fields["policy"] = _check_policy(_change_policy(policy, options), options)
    return fields


@contextmanager
def _name_option_in_errors(name: str) -> Iterator[None]:
    """Name the option in an error about its value."""
    with about(name):
        try:
            yield
        except ValueError as error:
            raise BadData(str(error)) from error


def read_states(given: State | str | Sequence[State | str]) -> tuple[State, ...]:
    """Read one state, or several."""
    states = tuple(map(State.named, [given] if isinstance(given, str) else given))
    if not KNOWN.issuperset(states):
        raise BadData(
            f"state must be one of {', '.join(s for s in State if s.code)}, not {given!r}"
        )
    return states


def stated_terms(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the fields of a policy that options give."""
    if not options:
        return ()
    return tuple(name for name in POLICY_FIELDS if _WORDS.get(name, name) in options)


def check_fields(fields: Mapping[str, Any]) -> None:
    """Refuse fields that do not go together."""
    if fields.get("unique_live") and "dedupe_key" not in fields:
        raise BadData("unique limits how long a dedupe_key holds; give one", field="dedupe_key")


def _change_policy(base: Policy, options: Mapping[str, Any]) -> Policy:
    """Change a policy by the options that are given."""
    given: dict[str, Any] = {}
    for name in ("timeout", "start_timeout", "lease", "heartbeat"):
        if name in options:
            with _name_option_in_errors(name):
                given[name] = _optional_micros(options[name], name)
    if "retries" in options:
        with _name_option_in_errors("retries"):
            given["max_attempts"] = _tries(options["retries"])
    elif options.get("idempotent") is False:
        # What must not run twice is not retried unless a caller asks for it (resolution 5).
        given["max_attempts"] = 1
    if "backoff" in options:
        with _name_option_in_errors("backoff"):
            given |= _read_backoff(options["backoff"])
    given |= {
        name: options[name]
        for name in ("on_exhausted", "letter_on_fail", "idempotent")
        if name in options
    }
    if options.get("compensate") or options.get("compensate_steps"):
        given["compensates"] = True
    return replace(base, **given) if given else base


def _tries(retries: Any) -> int:
    if type(retries) is not int or retries < 0:
        raise ValueError(f"retries must be a whole number of 0 or more, not {retries!r}")
    return retries + 1


def _read_backoff(backoff: Any) -> dict[str, Any]:
    """Read a backoff; a span alone is a delay that does not grow."""
    if not isinstance(backoff, Backoff):
        span = span_micros(backoff, "backoff")
        return {"backoff_first": span, "backoff_factor": 1.0, "backoff_max": span}
    if type(backoff.factor) not in (int, float):
        raise ValueError(f"the backoff's factor must be a number, not {backoff.factor!r}")
    return {
        "backoff_first": span_micros(backoff.first, "the backoff's first delay"),
        "backoff_factor": float(backoff.factor),
        "backoff_max": span_micros(backoff.max, "the backoff's maximum"),
    }


def _optional_micros(span: Span | None, what: str) -> int | None:
    if span is None and what in ("lease", "heartbeat"):
        raise ValueError(f"{what} must be a span, not None")
    return None if span is None else span_micros(span, what)


def _check_policy(policy: Policy, options: Mapping[str, Any]) -> Policy:
    if faults := policy_faults(policy, bounded=False):
        term = faults[0].term
        word = _WORDS.get(term, term)
        raise BadData(faults_text(faults), field=word if word in options else f"policy.{term}")
    return policy


def read_due_time(delay: Span | None, run_at: datetime | None) -> Time:
    """Read when a job is due: after a span, or at a time; exactly one of them."""
    if (delay is None) == (run_at is None):
        raise BadData("give either delay or run_at")
    if run_at is not None:
        with about("run_at"):
            return read_instant(run_at, "run_at")
    with _name_option_in_errors("delay"):
        return _read_span(delay or 0, "delay")


def read_deadline(deadline: Span | None, deadline_at: datetime | None) -> dict[str, Any]:
    """Read the deadline of a submission that is given as a time; a span is one of its options."""
    if deadline_at is None:
        return {}
    with about("deadline_at"):
        if deadline is not None:
            raise BadData("give a deadline or a deadline_at, not both")
        return {"deadline_at": read_instant(deadline_at, "deadline_at")}


def read_instant(value: Any, what: str) -> Time:
    """Read a date with its time zone, or microseconds since 1970."""
    if not isinstance(value, datetime):
        return check_time(value, what)
    if value.tzinfo is None:
        raise BadData(f"{what} must have a time zone: {value!r} has none")
    return check_time((value - _EPOCH) // timedelta(microseconds=1), what)


def _deadline(value: Span | datetime) -> Time:
    if isinstance(value, datetime):
        return read_instant(value, "deadline")
    return _read_span(value, "deadline")


def _read_span(span: Span, what: str) -> After:
    micros = span_micros(span, what)
    if micros >= HORIZON:
        raise BadData(
            f"{what} must be under {LONGEST_SPAN}, not {span!r}; give a later time as a datetime"
        )
    return After(micros)


def _version(value: Any) -> str | None:
    if value is None:
        return None
    return check_version(str(value) if type(value) is int else value, "version")


def _read_priority(value: Any) -> Priority:
    if isinstance(value, Priority):
        return value
    if isinstance(value, str) and (found := Priority.named(value)).code:
        return found
    known = ", ".join(word for word in Priority if word.code)
    raise ValueError(f"priority must be one of {known}, not {value!r}")


def _needs(value: Any) -> frozenset[str]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ValueError(f"needs must be a set of names, not {value!r}")
    return frozenset(check_text(need, "a name in needs", limit=NEED_LIMIT) for need in value)


def _isolated(value: Any) -> bool:
    if value not in (None, "process"):
        raise ValueError(f"isolate must be None or 'process', not {value!r}")
    return value is not None


def _unique(value: Any) -> bool:
    if value not in (None, "live"):
        raise ValueError(f"unique must be None or 'live', not {value!r}")
    return value is not None


def _read_uuid4(value: Any) -> str:
    """Read a client_job_id (D10)."""
    text = check_text(value, "client_job_id", limit=36)
    try:
        if UUID(text).version == 4 and len(text) == 36:
            return text.lower()
    except ValueError:
        pass
    raise BadData(f"client_job_id must be a UUID of version 4, not {text!r}")


def check_adapter(value: Any) -> str:
    """Check the id of an adapter; what a worker that has it offers is bounded as any need is."""
    return check_text(value, "adapter_id", limit=NEED_LIMIT - len(ADAPTER_PREFIX))


def list_adapter_needs(adapters: Iterable[str]) -> frozenset[str]:
    """Return the capabilities of a worker that has these adapters."""
    if isinstance(adapters, str):
        raise BadData(f"adapters must be a list of ids, not {adapters!r}", field="adapters")
    return frozenset(f"{ADAPTER_PREFIX}{check_adapter(one)}" for one in adapters)


def check_known(options: Mapping[str, Any], kind: Any) -> None:
    """Refuse options that a typed dictionary does not have."""
    known = kind.__annotations__
    for name in options:
        if name not in known:
            text = f"there is no option {name!r}; there are {', '.join(known)}"
            raise BadData(text, field=name)


_PLAIN = (
    "job_id",
    "request_id",
    "dedupe_key",
    "workflow_id",
    "step_index",
    "correlation_id",
    "tenant",
    "queue",
)
_READ: tuple[tuple[str, str, Callable[[Any], Any]], ...] = (
    ("priority", "priority", _read_priority),
    ("needs", "needs", _needs),
    ("client_job_id", "client_job_id", _read_uuid4),
    ("labels", "labels", check_labels),
    ("env", "env", partial(check_labels, what="env")),
    ("context_ptr", "context_ptr", partial(check_text, what="context_ptr")),
    ("adapter_id", "adapter_id", check_adapter),
    ("delay", "run_at", partial(_read_span, what="delay")),
    ("run_at", "run_at", partial(read_instant, what="run_at")),
    ("deadline", "deadline_at", _deadline),
    ("unique", "unique_live", _unique),
)
"""Options that are read, and the field of a submission that each becomes."""
_WORDS = {
    "max_attempts": "retries",
    "backoff_first": "backoff",
    "backoff_factor": "backoff",
    "backoff_max": "backoff",
}
"""Terms of a policy that have another name as an option."""
_POLICY_WORDS = frozenset({"retries", "backoff", "timeout", "start_timeout"})
