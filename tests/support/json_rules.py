"""The rules that every JSON keeps: one meaning of `id`, RFC 3339 times, spans with a unit.

See docs/http.md. Values that users gave (arguments, payloads, results, labels) follow no rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any
from uuid import UUID

GIVEN = {
    "payload",
    "args",
    "arguments",
    "result",
    "value",
    "labels",
    "env",
    "error",
    "last_error",
}
"""What users gave."""
TIMES = {
    *("at", "ts", "now", "since", "until", "timestamp", "time"),
    *("lease_until", "start_by", "not_before"),
}
UNITS = ("_minutes", "_seconds", "_ms", "_bytes", "_mb", "_gb")
COUNTS = {
    *(
        "attempt",
        "attempts",
        "begun",
        "busy",
        "changed",
        "cleaned",
        "concurrency",
        "cpus",
        "done",
        "host_cpus",
        "free_cpus",
    ),
    *("ended", "epoch", "erased", "events", "exit_code", "factor", "backoff_factor", "failures"),
    *("found", "freed", "heartbeats", "jobs", "kept", "letters", "level", "limit", "lines", "live"),
    *("max_attempts", "needs", "next", "number", "others", "pid", "position", "purged", "queues"),
    *("lost", "pending_signals", "signals"),
    *("releases", "rescheduled", "retries", "rev", "seen", "signal_revs", "silent", "skipped"),
    *("slots", "status", "step_index", "step_use", "consumed", "taken", "total", "tries"),
    *("under_way",),
    *("use", "version", "workers", "seconds", "bytes", "files"),
    *("removed_uploads", "swept_blobs", "waiting", "missing"),
}
"""Names of numbers that are neither times nor spans."""


def broken_rules(value: Any, path: str = "$") -> list[str]:
    """List what is wrong with an answer."""
    return list(_broken(value, path))


def _broken(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, list):
        for one in value:
            yield from _broken(one, f"{path}[]")
    elif isinstance(value, dict):
        yield from _broken_id(value, path)
        for name, one in value.items():
            if name not in GIVEN:
                yield from _broken_value(name, one, f"{path}.{name}")
                yield from _broken(one, f"{path}.{name}")


def _broken_id(one: dict[str, Any], path: str) -> Iterator[str]:
    if "id" not in one:
        return
    is_event = {"rev", "type"} <= one.keys() and str(one["id"]).endswith(f"/{one['rev']}")
    is_other = bool({"role", "url", "finalized_at"} & one.keys())  # a token, a webhook, an upload
    if not (is_event or is_other or "internal_id" in one):
        yield f"{path}.id: a job has its internal_id beside it, everything else names it job_id"


def _broken_value(name: str, value: Any, path: str) -> Iterator[str]:
    if name == "job" and not isinstance(value, dict):
        yield f"{path} is {value!r}: `job` is a whole job, `job_id` its id"
    if name == "internal_id" and value is not None:
        UUID(value)
    if (name.endswith("_at") or name in TIMES) and value is not None and not _is_time(value):
        yield f"{path} is {value!r}, not a time of RFC 3339"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    of_states = path.split(".")[-2] in ("jobs", "written", "purged")
    if is_number and name not in COUNTS and not name.endswith(UNITS) and not of_states:
        yield f"{path} is {value!r}: a span has a unit, in its text or in its name"


def _is_time(value: Any) -> bool:
    try:
        return isinstance(value, str) and datetime.fromisoformat(value).tzinfo is not None
    except ValueError:
        return False
