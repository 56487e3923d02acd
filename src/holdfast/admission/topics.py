"""Topics: which pool a job goes to by its topic, such as `job.chat.simple` (A2).

A pool is a queue, whose workers have a task of the topic's name, or a bus, on which the topic is
the subject. Patterns have the wildcards of NATS: `*` is any one token, and `>`, at the end, one or
more. Of the patterns that match, the most specific one counts: the first token in which two differ
decides, and there a literal beats `*`, and `*` beats `>`. So an exact topic beats every pattern,
and the longest literal prefix wins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from msgspec import Struct, ValidationError, convert
from msgspec.structs import fields, force_setattr

from holdfast.errors import BadConfig, BadData, NoPoolForTopic
from holdfast.lifecycle.payload import NUMBER_LIMIT, check_text
from holdfast.lifecycle.reserved import check_not_reserved

TOPIC_LIMIT = 200
"""Characters of a topic, as of the names of tasks and queues, which it becomes."""
PREFIX = "job"
"""The first token of every topic: on a bus, all other subjects have another purpose."""
ANY_TOKEN, ANY_REST = "*", ">"
_TOKEN = re.compile(r"[A-Za-z0-9_-]+")
_LONGEST_SECONDS = 365 * 24 * 3600.0
_KNOWN_SHOWN = 20
"""How many patterns an error names."""
_FOR_A_BUS = ("idempotent", "retries", "start_timeout_seconds", "timeout_seconds", "max_in_flight")


class Route(Struct, frozen=True, kw_only=True):
    """Where the jobs of a topic go, and the terms that they have there."""

    queue: str | None = None
    """The queue of their workers; the terms are those of the task with the topic's name."""
    bus: str | None = None
    """The bus that they are sent to; the terms are those below."""
    idempotent: bool = False
    """Whether a job may be sent twice; only then can it be retried (resolution 5)."""
    retries: int = 0
    start_timeout_seconds: float | None = None
    timeout_seconds: float | None = None
    max_in_flight: int = 100
    """How many jobs of the topic may be out on the bus at once."""
    adapter: Literal["require", "prefer"] = "require"
    """Whether a job that names an adapter needs a worker that has it (A5)."""

    def faults(self) -> Iterable[tuple[str, str]]:
        """Return what is wrong, each with the name of the field."""
        if (self.queue is None) == (self.bus is None):
            yield "queue", "or `bus` must say where the topic leads: one of them, not both"
            return
        for name in ("queue", "bus"):
            yield from ((name, fault) for fault in _name_faults(getattr(self, name), name))
        if self.bus is None:
            for name in _FOR_A_BUS:
                if getattr(self, name) != _DEFAULTS[name]:
                    yield name, "is for a bus; on a queue, the terms of the task apply"
            return
        if not 0 <= self.retries < 1_000_000:
            yield "retries", f"must be between 0 and 999,999, not {self.retries}"
        if self.retries and not self.idempotent:
            yield "retries", "needs idempotent = true: a retry sends the job a second time"
        for name in ("start_timeout_seconds", "timeout_seconds"):
            seconds = getattr(self, name)
            if seconds is not None and not 0 < seconds <= _LONGEST_SECONDS:
                yield name, f"must be more than 0 and at most a year, not {seconds!r}"
        if not 1 <= self.max_in_flight <= NUMBER_LIMIT:
            yield "max_in_flight", f"must be from 1, not {self.max_in_flight}"


_DEFAULTS = {field.name: field.default for field in fields(Route)}


class Topics(Struct, frozen=True, kw_only=True):
    """The routes by pattern, the most specific pattern first."""

    routes: dict[str, Route] = {}

    def __post_init__(self) -> None:
        """Check the patterns and the routes, and put them in order."""
        for pattern, route in self.routes.items():
            if (fault := _pattern_fault(pattern)) is not None:
                raise BadConfig(f"[topics] {pattern!r} {fault}")
            for field, fault in route.faults():
                raise BadConfig(f'[topics."{pattern}"] {field} {fault}')
        force_setattr(self, "routes", dict(sorted(self.routes.items(), key=_specificity)))

    def route(self, topic: str) -> Route | None:
        """Return the route of the most specific pattern that matches; None: no pool."""
        if (exact := self.routes.get(topic)) is not None:
            return exact
        tokens = topic.split(".")
        for pattern, route in self.routes.items():
            if _matches(pattern.split("."), tokens):
                return route
        return None

    def route_or_refuse(self, topic: Any) -> Route:
        """Return the route of a topic; BadData, or NoPoolForTopic, says what to change."""
        route = self.route(check_topic(topic))
        if route is None:
            raise NoPoolForTopic(_no_pool_text(topic, list(self.routes)), field="topic")
        return route


def read_topics(table: Mapping[str, Any], source: str) -> Topics:
    """Read the table `[topics]` strictly; an error names the source, the pattern and the field."""
    if not isinstance(table, Mapping):
        raise BadConfig(f"{source}: [topics] must be a table")
    routes = {pattern: _read_route(given, pattern, source) for pattern, given in table.items()}
    try:
        return Topics(routes=routes)
    except BadConfig as error:
        raise BadConfig(f"{source}: {error}") from None


def check_topic(topic: Any) -> str:
    """Return a topic, or raise BadData: it begins with `job.` and has no wildcards."""
    try:
        check_text(topic, "topic", limit=TOPIC_LIMIT)
        tokens = topic.split(".")
        if tokens[0] != PREFIX or len(tokens) < 2:
            raise BadData(f"topic {topic!r} must begin with '{PREFIX}.', as job.chat.simple does")
        if not all(map(_TOKEN.fullmatch, tokens)):
            raise BadData(
                f"topic {topic!r} must consist of tokens of letters, digits, '_' and '-' "
                "with one '.' between them"
            )
    except BadData as error:
        error.field = "topic"
        raise
    return str(topic)


def _read_route(given: Any, pattern: Any, source: str) -> Route:
    name = f'[topics."{pattern}"]'
    if isinstance(given, Route):
        return given
    if not isinstance(given, Mapping):
        raise BadConfig(f"{source}: {name} must be a table with {', '.join(_DEFAULTS)}")
    if pattern == PREFIX and all(isinstance(one, Mapping) for one in given.values()):
        text = 'needs quotes around the whole pattern: write [topics."job.chat.*"]'
        raise BadConfig(f"{source}: [topics.{PREFIX}…] {text}")
    for field in given:
        if field not in _DEFAULTS:
            text = f"has no field {field!r}; there are {', '.join(_DEFAULTS)}"
            raise BadConfig(f"{source}: {name} {text}")
    try:
        return convert(dict(given), Route)
    except ValidationError as error:
        # Not the error itself: its text has the path of the field inside the table.
        text, _, where = str(error).partition(" - at `$.")
        raise BadConfig(
            f"{source}: {name} {where.rstrip('`')}: {text[:1].lower()}{text[1:]}"
        ) from None


def _name_faults(name: str | None, what: str) -> Iterable[str]:
    if name is None:
        return
    try:
        check_text(name, what, limit=TOPIC_LIMIT)
        check_not_reserved(name, what)
    except BadData as error:
        yield str(error).removeprefix(f"{what} ")


def _pattern_fault(pattern: Any) -> str | None:
    """Return what is wrong with a pattern."""
    if not isinstance(pattern, str) or len(pattern) > TOPIC_LIMIT:
        return f"must be text of at most {TOPIC_LIMIT} characters"
    tokens = pattern.split(".")
    if tokens[0] != PREFIX or len(tokens) < 2:
        return f"must begin with '{PREFIX}.', as job.chat.* does"
    if ANY_REST in tokens[:-1]:
        return f"has '{ANY_REST}' before its end; it stands for all the rest"
    if not all(token in (ANY_TOKEN, ANY_REST) or _TOKEN.fullmatch(token) for token in tokens):
        return "must consist of tokens of letters, digits, '_' and '-', or '*', or '>' at the end"
    return None


def _specificity(entry: tuple[str, Route]) -> list[int]:
    """Return a sort key: of two patterns that match one topic, the smaller is more specific."""
    ranks = {ANY_TOKEN: 1, ANY_REST: 2}
    return [ranks.get(token, 0) for token in entry[0].split(".")]


def _matches(pattern: list[str], topic: list[str]) -> bool:
    if pattern[-1] == ANY_REST:
        if len(topic) < len(pattern):
            return False
        pattern = pattern[:-1]
    elif len(pattern) != len(topic):
        return False
    return all(own in (ANY_TOKEN, token) for own, token in zip(pattern, topic, strict=False))


def _no_pool_text(topic: str, known: list[str]) -> str:
    if not known:
        patterns = "there are none"
    else:
        more = f" and {len(known) - _KNOWN_SHOWN} more" if len(known) > _KNOWN_SHOWN else ""
        patterns = f"there are {', '.join(known[:_KNOWN_SHOWN])}{more}"
    return (
        f"no pool for topic {topic!r}: no pattern in [topics] matches it; {patterns}. "
        f'Add [topics."{topic}"] with a queue or a bus'
    )


NO_TOPICS = Topics()
