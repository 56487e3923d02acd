"""The structured conditions of a rule: globs, lists and ranges on the variables of a job."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from msgspec import Struct

from holdfast.durations import span_seconds

Globs = str | tuple[str, ...]
"""One glob or several, of which one must match."""


class NumberRange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A number from `min` to `max`, both included."""

    min: int | float | str | None = None
    max: int | float | str | None = None


Bound = int | NumberRange
"""One number, or a range of them."""


class Match(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a rule is about: all that is given must match."""

    kind: Globs | None = None
    task: Globs | None = None
    topic: Globs | None = None
    queue: Globs | None = None
    tenant: Globs | None = None
    priority: Globs | None = None
    adapter: Globs | None = None
    image: Globs | None = None
    network: Globs | None = None
    parent: Globs | None = None
    submitter: Globs | None = None
    submitter_role: Globs | None = None
    needs: Globs | None = None
    command: Globs | None = None
    risk_tags: Globs | None = None
    labels: dict[str, Globs] | None = None
    env: dict[str, Globs] | None = None
    cpus: Bound | None = None
    memory_mb: Bound | None = None
    timeout_seconds: Bound | None = None
    retries: Bound | None = None
    body_bytes: Bound | None = None


FEW = (
    *("kind", "task", "topic", "queue", "tenant", "priority", "adapter", "image", "network"),
    *("parent", "submitter_role", "cpus", "memory_mb", "timeout_seconds", "retries"),
)
"""Variables of which few values occur: which rules match them is remembered by their values."""
MAPS = ("labels", "env")
"""Variables of which the entries that a rule names are remembered likewise."""


class Condition(NamedTuple):
    """One compiled condition."""

    name: str
    """The variable that it reads."""
    text: str
    """What it asks for, for a person."""
    holds: Callable[[Any], bool]
    key: str | None = None
    """The entry that it reads, of a variable that is a map."""


def compile_match(match: Match) -> tuple[Condition, ...]:
    """Return the conditions of a rule; ValueError explains a range that cannot be read."""
    found: list[Condition] = []
    for name in match.__struct_fields__:
        asked = getattr(match, name)
        if asked in ((), {}):
            raise ValueError(f"{name} is empty; leave it out, or write what is to match")
        if asked is not None:
            compile_one: _Compile = _CONDITIONS.get(type(asked), _globs)
            found += compile_one(name, asked)
    return tuple(found)


def _globs(name: str, asked: Globs) -> list[Condition]:
    return [Condition(name, _text(asked), _holds_globs(asked))]


def _map(name: str, asked: Mapping[str, Globs]) -> list[Condition]:
    if () in asked.values():
        raise ValueError(f"an entry of {name} is empty; leave it out, or write what is to match")
    return [
        Condition(name, f"{key} = {_text(globs)}", _holds_entry(key, matcher(globs)), key)
        for key, globs in asked.items()
    ]


def _range(name: str, asked: NumberRange) -> list[Condition]:
    low, high = (_number(name, end, bound) for end, bound in _ends(asked))
    if low is None and high is None:
        raise ValueError(f"{name} needs min, max or both: {name} = {{ max = 4 }}")
    if low is not None and high is not None and low > high:
        raise ValueError(f"min of {name} is above its max; no job would match")
    words = [f"at least {low:g}"] if low is not None else []
    words += [f"at most {high:g}"] if high is not None else []

    def holds(value: Any) -> bool:
        return (
            isinstance(value, int | float)
            and (low is None or value >= low)
            and (high is None or value <= high)
        )

    return [Condition(name, " and ".join(words), holds)]


def _exactly(name: str, asked: int) -> list[Condition]:
    return [Condition(name, str(asked), lambda value: bool(value == asked))]


_Compile = Callable[[str, Any], list[Condition]]
_CONDITIONS: dict[type, _Compile] = {
    dict: _map,
    NumberRange: _range,
    int: _exactly,
}


def _ends(asked: NumberRange) -> tuple[tuple[str, Any], tuple[str, Any]]:
    return ("min", asked.min), ("max", asked.max)


def _number(name: str, end: str, bound: int | float | str | None) -> float | None:
    if isinstance(bound, str):
        if name != "timeout_seconds":
            raise ValueError(f"{end} of {name} must be a number, not {bound!r}")
        return span_seconds(bound, f"{end} of {name}")
    return bound


def _text(globs: Globs) -> str:
    return globs if isinstance(globs, str) else " or ".join(globs)


def _holds_globs(globs: Globs) -> Callable[[Any], bool]:
    """Match a text, or any text of a list."""
    matches = matcher(globs)

    def holds(value: Any) -> bool:
        if isinstance(value, str):
            return matches(value)
        return isinstance(value, list | tuple | frozenset) and any(
            isinstance(one, str) and matches(one) for one in value
        )

    return holds


def _holds_entry(key: str, matches: Callable[[str], bool]) -> Callable[[Any], bool]:
    def holds(value: Any) -> bool:
        entry = value.get(key) if isinstance(value, Mapping) else None
        return isinstance(entry, str) and matches(entry)

    return holds


def matcher(globs: Globs) -> Callable[[str], bool]:
    """Return whether a text matches one of the globs: `*`, `?` and `[abc]`, case counts."""
    wanted = (globs,) if isinstance(globs, str) else globs
    literals = frozenset(one for one in wanted if not is_glob(one))
    patterns = [fnmatch.translate(one) for one in wanted if is_glob(one)]
    if not patterns:
        return literals.__contains__
    if not literals and len(wanted) == 1 and (prefix := _prefix(wanted[0])) is not None:
        return lambda text: text.startswith(prefix)
    expression = re.compile("|".join(patterns)).match
    return lambda text: text in literals or expression(text) is not None


def is_glob(text: str) -> bool:
    """Return whether a text is a pattern, and not only itself."""
    return any(sign in text for sign in "*?[")


def _prefix(glob: str) -> str | None:
    """Return the literal start of a glob that has nothing but a star after it."""
    return glob[:-1] if glob.endswith("*") and not is_glob(glob[:-1]) else None
