"""What each seed allows, written out by hand from its text: the judge of the dialects.

Nothing here is read from `holdfast.lifecycle.dialects`. Beyond a seed's own list stand only the
exceptions that docs/requirements.md names, each marked as one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from holdfast.lifecycle.dialects import Shown

Pairs = set[tuple[str | None, str]]

A_EDGES: Pairs = {
    (None, "PENDING"),
    ("PENDING", "SCHEDULED"),
    ("SCHEDULED", "DISPATCHED"),
    ("DISPATCHED", "RUNNING"),
    ("RUNNING", "SUCCEEDED"),
    ("RUNNING", "FAILED"),
    ("RUNNING", "TIMEOUT"),
    ("DISPATCHED", "TIMEOUT"),
    ("SCHEDULED", "DENIED"),
    # any --> CANCELLED
    ("PENDING", "CANCELLED"),
    ("SCHEDULED", "CANCELLED"),
    ("DISPATCHED", "CANCELLED"),
    ("RUNNING", "CANCELLED"),
}
A_IMPLIED: Pairs = {("PENDING", "SCHEDULED"), ("SCHEDULED", "DENIED"), ("RUNNING", "FAILED")}
"""An implied step stands only before: the birth into SCHEDULED, a denial, a failure."""

B_EDGES: Pairs = {
    (None, "queued"),
    # Allowed Transitions
    ("queued", "assigned"),
    ("assigned", "running"),
    ("running", "succeeded"),
    ("running", "failed"),
    ("running", "cancelled"),
    ("queued", "dead_lettered"),
    ("assigned", "dead_lettered"),
    ("running", "dead_lettered"),
    # Valid Transitions: queued/assigned/running → cancelled
    ("queued", "cancelled"),
    ("assigned", "cancelled"),
}
B_NEXT_ATTEMPT: Pairs = {("assigned", "queued"), ("running", "queued")}
"""Exception: only with the next attempt's number ("if lease expires, job returns to queued")."""
B_EVENTS = {
    "job_claimed": "assigned",
    "job_started": "running",
    "job_succeeded": "succeeded",
    "job_failed": "failed",
    "job_cancelled": "cancelled",
    "job_dead_lettered": "dead_lettered",
    # The seed has no event for it; an event then takes the word of the state it leads to.
    "queued": "queued",
}
B_ASIDE = {
    "job_heartbeat": {"assigned", "running"},
    "job_lease_renewed": {"assigned", "running"},
    "job_compensated": {"succeeded", "failed", "cancelled", "dead_lettered"},
}
"""Events of the seed that change no state, and where they may stand."""
B_REASONS = {
    "parse_error",
    "validation_failed",
    "dependency_unavailable",
    "timeout",
    "exhausted_retries",
    "policy_violation",
    "infrastructure_failure",
    "compensation_failed",
}

C_EDGES: dict[str, Pairs] = {
    "enqueued": {(None, "queued")},
    "claimed": {("queued", "claimed"), ("stalled", "claimed")},
    "started": {("claimed", "running")},
    "heartbeat": {("claimed", "claimed"), ("running", "running")},
    "succeeded": {("running", "succeeded")},
    "failed": {("running", "failed")},
    "stalled": {("claimed", "stalled"), ("running", "stalled")},
    "requeued": {("stalled", "queued")},
}
C_CLOSING: Pairs = {("queued", "failed"), ("claimed", "failed"), ("stalled", "failed")}
"""Exception: closing writes (cancel, deny, time-out, dead letter)."""

D_EDGES: Pairs = {
    (None, "pending"),
    ("pending", "starting"),
    ("starting", "running"),
    ("running", "completed"),
    ("running", "failed"),
    ("running", "timed_out"),
    ("running", "cancelled"),
    # Crash recovery: a container that is gone, or has exited, while starting
    ("starting", "failed"),
    ("starting", "completed"),
    # Cleanup: only from completed | failed | timed_out | cancelled
    ("completed", "cleaning"),
    ("failed", "cleaning"),
    ("timed_out", "cleaning"),
    ("cancelled", "cleaning"),
    ("cleaning", "cleaned"),
}
D_WITHOUT_EXIT_CODE: Pairs = {
    ("pending", "failed"),
    ("pending", "cancelled"),
    ("starting", "cancelled"),
}
"""Exception: edges with exit_code null."""

_E_LIVE = {"Queued", "Leased", "Running", "Waiting", "Retrying"}
E_EVENTS: dict[str, tuple[set[str], set[str]]] = {
    # event: (states that its meaning allows before it, states it leads to)
    "job_requeued": ({"Leased", "Running", "Queued"}, {"Queued", "Retrying"}),
    "job_leased": ({"Queued", "Retrying"}, {"Leased"}),
    "job_running": ({"Leased", "Running"}, {"Running"}),
    "job_waiting": ({"Running"}, {"Waiting"}),
    "wait_completed": ({"Waiting"}, {"Queued", "Running"}),
    "job_completed": ({"Running"}, {"Completed"}),
    "job_failed": (_E_LIVE, {"Failed"}),
    "job_cancelled": (_E_LIVE, {"Cancelled"}),
    "JobQueued": ({"Queued"}, {"Queued"}),
}


def legal_in_seed(key: str, history: Sequence[Shown]) -> list[str]:
    """Say what of a rendered history the seed `key` does not allow."""
    if not history:
        return ["nothing is shown"]
    problems = [
        f"{line.event}: leaves {line.from_state}, not {before.state}"
        for before, line in pairwise(history)
        if line.from_state != before.state
    ]
    return (
        problems
        + [problem for line in history for problem in _JUDGES[key](line)]
        + (_across(key, history))
    )


def _no_edge(line: Shown) -> list[str]:
    return [f"{line.event}: {line.from_state} → {line.state}"]


def _judge_a(line: Shown) -> list[str]:
    problems = [] if (line.from_state, line.state) in A_EDGES else _no_edge(line)
    dispatched = line.state in ("DISPATCHED", "RUNNING", "SUCCEEDED", "FAILED", "TIMEOUT")
    if dispatched and line.attempt == 0:
        problems.append(f"{line.state} without a dispatch")
    if line.event != line.state:
        problems.append(f"event {line.event} for {line.state}")
    return problems


def _judge_b(line: Shown) -> list[str]:
    edge = (line.from_state, line.state)
    if line.event in B_ASIDE:
        stays = line.from_state == line.state and line.state in B_ASIDE[line.event]
        return [] if stays else _no_edge(line)
    problems = [] if edge in B_EDGES | B_NEXT_ATTEMPT else _no_edge(line)
    if B_EVENTS.get(line.event) != line.state:
        problems.append(f"event {line.event} for {line.state}")
    if line.state == "dead_lettered" and line.error not in B_REASONS:
        problems.append(f"dead-lettered for {line.error}")
    return problems


def _judge_c(line: Shown) -> list[str]:
    allowed = C_EDGES.get(line.event, set())
    if line.event == "failed":
        allowed = allowed | C_CLOSING
    problems = [] if (line.from_state, line.state) in allowed else _no_edge(line)
    if (line.error is not None) != (line.state == "failed"):
        problems.append(f"{line.state} with error {line.error}")
    return problems


def _judge_d(line: Shown) -> list[str]:
    edge = (line.from_state, line.state)
    problems = [] if edge in D_EDGES | D_WITHOUT_EXIT_CODE else _no_edge(line)
    if edge in D_WITHOUT_EXIT_CODE and line.exit_code is not None:
        problems.append(f"{line.from_state} → {line.state} with exit code {line.exit_code}")
    return problems


def _judge_e(line: Shown) -> list[str]:
    if line.from_state is None:
        return [] if (line.event, line.state) == ("job_created", "Queued") else _no_edge(line)
    sources, targets = E_EVENTS.get(line.event, (set(), set()))
    return [] if line.from_state in sources and line.state in targets else _no_edge(line)


_JUDGES: dict[str, Callable[[Shown], list[str]]] = {
    "A": _judge_a,
    "B": _judge_b,
    "C": _judge_c,
    "D": _judge_d,
    "E": _judge_e,
}


def _across(key: str, history: Sequence[Shown]) -> list[str]:
    """Judge what takes two lines to see: implied steps, and the numbers of attempts."""
    problems = []
    for before, line in pairwise(history):
        step = line.attempt - before.attempt
        if before.implied and (before.state, line.state) not in A_IMPLIED:
            problems.append(f"{before.state} is implied before {line.state}")
        if key == "B" and line.state in ("queued", "assigned", "running"):
            again = (before.state, line.state) in B_NEXT_ATTEMPT
            if step != (1 if again else 0):
                problems.append(f"{before.state} {before.attempt} → {line.state} {line.attempt}")
        if key == "C" and step != (line.event == "claimed"):
            problems.append(f"{line.event}: attempt {before.attempt} → {line.attempt}")
    first = {"B": 1}.get(key, 0)
    if history[0].attempt != first:
        problems.append(f"the first attempt is {history[0].attempt}")
    return problems
