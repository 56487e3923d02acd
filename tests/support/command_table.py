"""What a submit of a command may ask for, and what comes of it: one table for every surface."""

from __future__ import annotations

from typing import Any, NamedTuple

KEY = "550e8400-e29b-41d4-a716-446655440000"
OLD = "550e8400-e29b-11d4-a716-446655440000"
"""A UUID of version 1."""
WORKER: dict[str, Any] = {"type": "worker", "command": "make test"}
AGENT: dict[str, Any] = {"type": "agent", "task": "fix the build", "git_branch": "fix/build"}
GRANTED = {"cpus": ("cpus", 1), "memory_gb": ("memory_mb", 1024)}
"""Where a job keeps what it was granted, and in which unit."""


class Case(NamedTuple):
    """A request, and the value that is kept of a field, or the field that is refused."""

    base: dict[str, Any]
    field: str
    value: Any
    kept: Any = None
    code: str | None = None
    """The code of a refusal; `wrong_type` is one of a decoder or of a check."""

    @property
    def request(self) -> dict[str, Any]:
        """What is sent."""
        return {**self.base, self.field: self.value}

    @property
    def name(self) -> str:
        """What the test is called."""
        value = repr(self.value)
        shown = value if len(value) < 40 else f"{value[:20]}…{len(value)}"
        return f"{self.request['type']} {self.field}={shown}"


def _kept(base: dict[str, Any], field: str, *pairs: tuple[Any, Any]) -> list[Case]:
    return [Case(base, field, value, kept) for value, kept in pairs]


def _refused(base: dict[str, Any], field: str, code: str, *values: Any) -> list[Case]:
    return [Case(base, field, value, code=code) for value in values]


def _without(base: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in base.items() if key != name}


_BARE = _without(WORKER, "command")
NUMBERS = ("cpus", "memory_gb", "timeout_minutes")
KEPT = [
    *_kept(WORKER, "cpus", (1, 1), (8, 8), (9, 8), (1_000_000, 8)),
    *_kept(WORKER, "memory_gb", (1, 1), (16, 16), (17, 16)),
    *_kept(WORKER, "timeout_minutes", (1, 1), (120, 120), (121, 120), (525_600, 120)),
    *_kept(AGENT, "cpus", (4, 4), (5, 4), (8, 4)),
    *_kept(AGENT, "memory_gb", (8, 8), (9, 8), (16, 8)),
    *_kept(AGENT, "timeout_minutes", (120, 120), (121, 120)),
    *_kept(
        WORKER,
        "image",
        *(
            (name, name)
            for name in (
                "busybox",
                "localhost/hf:bb",
                "host.example:5000/team/app_1:v1.2-rc",
                "a/b@sha256:" + "0" * 64,
            )
        ),
    ),
    *_kept(WORKER, "runner", ("podman", "podman"), ("sandbox", "sandbox"), ("process", "process")),
    *_kept(WORKER, "command", ("x" * 10_000, "x" * 10_000), ("a\n\tb", "a\n\tb"), ("ä→", "ä→")),
    *_kept(AGENT, "task", ("x" * 100_000, "x" * 100_000)),
    *_kept(AGENT, "context", ("x" * 100_000, "x" * 100_000), ("", "")),
    *_kept(AGENT, "git_branch", ("feature/x-1", "feature/x-1")),
]
REFUSED = [
    *(case for base in (WORKER, AGENT) for name in NUMBERS for case in [
        *_refused(base, name, "wrong_type", 2.0, 1.5, "2", None, True, 1e3, [2]),
        *_refused(base, name, "bad_data", 0, -1, 1_000_001, 10**12),
    ]),
    *_refused(_without(WORKER, "type"), "type", "wrong_type", "sub-agent", "Agent", " agent", ""),
    *_refused(_BARE, "command", "missing_command", None, "", "  \n"),
    *_refused(WORKER, "command", "bad_data", "a\0b", "x" * 10_001),
    *_refused(_BARE, "argv", "missing_command", [], [""]),
    *_refused(_BARE, "argv", "bad_data", ["a\0b"], ["x"] * 10_001),
    *_refused(WORKER, "argv", "bad_data", ["make"]),
    *_refused({**WORKER, "runner": "sandbox"}, "image", "bad_data", "busybox"),
    *_refused({**WORKER, "runner": "process"}, "image", "bad_data", "busybox"),
    *(Case(WORKER, name, "x", code="bad_data") for name in ("task", "context", "git_branch")),
    *_refused(AGENT, "task", "missing_task", None, "", " "),
    *_refused(AGENT, "task", "bad_data", "x" * 100_001, "a\0"),
    *_refused(AGENT, "context", "bad_data", "x" * 100_001),
    *_refused(AGENT, "git_branch", "missing_git_branch", None, ""),
    *_refused(AGENT, "git_branch", "bad_data", "-x", "a b", "a..b", "a~1", "x/", "x" * 300),
    *_refused(AGENT, "command", "bad_data", "make"),
    *_refused(AGENT, "argv", "bad_data", ["make"]),
    *_refused(
        WORKER, "image", "bad_data",
        "", "-v", "--privileged", "a b", "a\n", "a\x1b", "docker-archive:/etc/passwd", "a" * 501,
    ),
    *_refused(WORKER, "runner", "wrong_type", "docker", ""),
    *_refused(WORKER, "files_id", "bad_data", "", "a\0", "x" * 101),
    *_refused(WORKER, "retries", "wrong_type", 0, 3),
    *_refused(WORKER, "client_job_id", "bad_data", "x", KEY.replace("-", ""), KEY[:-1] + "g", OLD),
    *_refused(WORKER, "env", "bad_data", {"A B": "x"}, {"1A": "x"}, {"HOLDFAST_TOKEN": "x"}),
]  # fmt: skip
CODES = {"wrong_type": {"validation_failed", "bad_data"}}
"""What a code of the table may be; any other is itself."""
