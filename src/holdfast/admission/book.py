"""The rules file: its format, and the checks that refuse a bad one by file, line and rule.

A book is a TOML text. It is kept as its text; its digest names it, in every decision made by it.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable
from enum import StrEnum
from hashlib import sha256
from typing import Any, Literal, NoReturn
from zoneinfo import ZoneInfo

import msgspec
from msgspec import Struct

from holdfast.admission.expressions import Expression, ExpressionError, Language
from holdfast.admission.matches import Condition, Globs, Match, NumberRange, compile_match, is_glob
from holdfast.admission.variables import TYPES
from holdfast.durations import span_seconds
from holdfast.errors import BadPolicy
from holdfast.lifecycle.states import Kind, Link, Priority, Role

VERSION = 1
BOOK_LIMIT = 1_000_000
"""Characters of a book."""
RULES_LIMIT = 5_000
APPROVER_ROLES = ("approver", "operator", "admin")
"""The roles of tokens that may approve."""
APPROVALS_LIMIT = 20
"""How many approvals a rule may ask for: each is a hold of the job."""
DEADLINE_LIMIT = 30.0
"""Seconds that an external kernel may be waited for."""
EXPIRY_LIMIT = 365 * 86_400
"""Seconds after which an approval may expire."""
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
_HOURS = re.compile(r"([01]\d|2[0-4]):([0-5]\d)-([01]\d|2[0-4]):([0-5]\d)", re.ASCII)
WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
DAY_MINUTES = 24 * 60


class Verdict(StrEnum):
    """What a rule decides on the jobs that it matches."""

    ALLOW = "allow"
    DENY = "deny"
    APPROVE = "approve"
    HOLD = "hold"
    ASK = "ask"


class Approval(Struct, frozen=True, kw_only=True):
    """Who must approve a job before it may run."""

    count: int = 1
    roles: tuple[str, ...] = APPROVER_ROLES
    expires_seconds: int = 0
    """0: never."""
    on_expiry: Literal["deny", "cancel"] = "deny"


class Constraints(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an allowed job gets at most; None: as much as it asked for."""

    timeout_seconds: float | None = None
    retries: int | None = None
    cpus: int | None = None
    memory_mb: int | None = None
    network: Literal["none", "host"] | None = None
    image: tuple[str, ...] | None = None
    """Globs; a job that names an image that none of them matches is denied."""
    priority: str | None = None


class Window(Struct, frozen=True, kw_only=True):
    """When a rule counts, in the zone of its book."""

    hours: tuple[int, int] | None = None
    """From and until, in minutes of the day; one that ends before it starts spans midnight."""
    weekdays: frozenset[int] | None = None
    """0 is Monday. The part of a window after midnight belongs to the day before."""


class Rule(Struct, frozen=True, kw_only=True):
    """One rule, compiled."""

    id: str
    then: Verdict
    reason: str | None = None
    match: Match = Match()
    when: str | None = None
    approve: Approval | None = None
    constrain: Constraints | None = None
    window: Window | None = None
    conditions: tuple[Condition, ...] = ()
    """`match`, compiled."""
    expression: Expression | None = None
    """`when`, compiled."""


class Kernel(Struct, frozen=True, kw_only=True):
    """An external service that decides for rules with `then = "ask"`."""

    url: str
    deadline_seconds: float = 0.5
    on_failure: Literal["closed", "open"] = "closed"
    secret_env: str | None = None
    """The environment variable with the secret that requests are signed with."""


# Compared and hashed by identity: what is remembered of a book goes with it.
class Book(Struct, frozen=True, kw_only=True, eq=False, weakref=True):
    """A rules file that was read."""

    version: int
    default: Verdict
    rules: tuple[Rule, ...]
    kernel: Kernel | None
    zone: str
    digest: str
    text: str
    language: Language | None = None
    """What evaluates the expressions of its rules; None if it has none."""


class _WrittenApproval(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    count: int = 1
    roles: tuple[str, ...] = APPROVER_ROLES
    expires: str | float | None = None
    on_expiry: Literal["deny", "cancel"] = "deny"


class _WrittenConstraints(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    timeout: str | float | None = None
    retries: int | None = None
    cpus: int | None = None
    memory_gb: float | None = None
    network: Literal["none", "host"] | None = None
    image: Globs | None = None
    priority: Literal["critical", "interactive", "batch"] | None = None


class _WrittenRule(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: str
    then: Literal["allow", "deny", "approve", "hold", "ask"]
    reason: str | None = None
    match: Match = Match()
    when: str | None = None
    hours: str | None = None
    weekdays: tuple[str, ...] | None = None
    approve: _WrittenApproval | None = None
    constrain: _WrittenConstraints | None = None


class _WrittenKernel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    url: str
    deadline: str | float = 0.5
    on_failure: Literal["closed", "open"] = "closed"
    secret_env: str | None = None


class _WrittenBook(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    version: int
    default: Literal["allow", "deny"]
    zone: str = "UTC"
    kernel: _WrittenKernel | None = None
    rule: tuple[_WrittenRule, ...] = ()


_TABLES: dict[str, type[Struct]] = {
    "": _WrittenBook,
    "kernel": _WrittenKernel,
    "rule": _WrittenRule,
    "rule.match": Match,
    "rule.approve": _WrittenApproval,
    "rule.constrain": _WrittenConstraints,
}
"""The tables of a book by their path: a misspelt field is compared with the fields of its table."""
_RANGES = ("cpus", "memory_mb", "timeout_seconds", "retries", "body_bytes")
_TABLES |= {f"rule.match.{name}": NumberRange for name in _RANGES}
_WORDS: dict[str, tuple[str, ...]] = {
    "kind": tuple(kind.value for kind in Kind if kind.code),
    "priority": tuple(one.value for one in Priority if one.code),
    "parent": tuple(link.value for link in Link if link.code),
    "submitter_role": tuple(role.value for role in Role),
    "network": ("", "none", "host"),
}
"""Variables that have one of a few values: any other could only be a mistake."""


def read_book(text: str, source: str = "policy") -> Book:
    """Return the book of a rules file; BadPolicy names the line, the rule and what to write."""
    return _Reader(text, source).read()


class _Reader:
    """Reads one book, and knows where its parts are in the text."""

    def __init__(self, text: str, source: str) -> None:
        self._text, self._source = text, source
        self._lines = text.splitlines()
        self._headers = [
            number
            for number, line in enumerate(self._lines, 1)
            if re.match(r"\s*\[\[\s*rule\s*\]\]", line)
        ]
        self._language: Language | None = None

    def read(self) -> Book:
        """Read the text, check each part, compile the rules."""
        written = self._convert(self._parse())
        if written.version != VERSION:
            self._refuse(f"version must be {VERSION}, not {written.version}", "version")
        if len(written.rule) > RULES_LIMIT:
            self._refuse(f"there are {len(written.rule):,} rules; the limit is {RULES_LIMIT:,}")
        self._check_zone(written.zone)
        kernel = None if written.kernel is None else self._read_kernel(written.kernel)
        self._check_ids(written.rule)
        rules = tuple(
            self._read_rule(number, rule, has_kernel=kernel is not None)
            for number, rule in enumerate(written.rule)
        )
        return Book(
            version=written.version,
            default=Verdict(written.default),
            rules=rules,
            kernel=kernel,
            zone=written.zone,
            digest=book_digest(self._text),
            text=self._text,
            language=self._language,
        )

    def _parse(self) -> dict[str, Any]:
        if len(self._text) > BOOK_LIMIT:
            self._refuse(f"has {len(self._text):,} characters; the limit is {BOOK_LIMIT:,}")
        try:
            return tomllib.loads(self._text)
        except tomllib.TOMLDecodeError as error:
            found = re.search(r"^(.*) \(at line (\d+), column \d+\)$", str(error))
            text, line = (found[1], int(found[2])) if found else (str(error), len(self._lines))
            raise self._error(f"not TOML: {text}", line) from None
        except RecursionError:
            raise self._error("nested too deeply", 1) from None

    def _convert(self, table: dict[str, Any]) -> _WrittenBook:
        try:
            return msgspec.convert(table, _WrittenBook)
        except msgspec.ValidationError as error:
            raise self._explain(str(error), table) from None

    def _explain(self, error: str, table: dict[str, Any]) -> BadPolicy:
        """Return the error of a table that has not the right shape, with its line and its rule."""
        text, _, place = error.partition(" - at `$")
        path = place.rstrip("`").lstrip(".")
        number = int(found[1]) if (found := re.match(r"rule\[(\d+)\]", path)) else None
        field = re.sub(r"\[[^\]]*\]", "", path)
        unknown = re.fullmatch(r"Object contains unknown field `(.*)`", text)
        if unknown is not None:
            text = _unknown_text(unknown[1], field)
            field = f"{field}.{unknown[1]}".lstrip(".")
        elif (missing := re.fullmatch(r"Object missing required field `(.*)`", text)) is not None:
            text = (
                f"{missing[1]} is missing; write {_EXAMPLES.get(missing[1], missing[1] + ' = …')}"
            )
        else:
            name = field.removeprefix("rule.")
            text = f"{name}: {text[:1].lower()}{text[1:]}" if name else text
        keys = field.split(".")[1:] if number is not None else field.split(".")
        return self._error(text, self._line(number, *keys), self._name(number, table))

    def _name(self, number: int | None, table: dict[str, Any]) -> str | None:
        """Return how to name a rule to a person: by its id if it has one, else by its number."""
        if number is None:
            return None
        try:
            return str(table["rule"][number]["id"])
        except (KeyError, IndexError, TypeError):
            return f"number {number + 1}"

    def _line(self, number: int | None, *keys: str) -> int:
        """Return the line of a field, or the nearest line before it that is known."""
        first, last = 1, len(self._lines)
        if number is not None and number < len(self._headers):
            first = self._headers[number]
            last = self._headers[number + 1] - 1 if number + 1 < len(self._headers) else last
        line = first
        for key in keys:
            pattern = re.compile(rf'\s*(\[+\s*|.*[{{,]\s*)?(\w+\.)*"?{re.escape(key)}"?\s*[=.\]]')
            for candidate in range(line, last + 1):
                if pattern.match(self._lines[candidate - 1]):
                    line = candidate
                    break
        return line

    def _error(self, text: str, line: int, rule: str | None = None) -> BadPolicy:
        about = "" if rule is None else f"rule {rule}: "
        return BadPolicy(f"{self._source}:{line}: {about}{text}")

    def _refuse(self, text: str, *keys: str) -> NoReturn:
        raise self._error(text, self._line(None, *keys))

    def _refuse_rule(self, number: int, rule: _WrittenRule, text: str, *keys: str) -> NoReturn:
        raise self._error(text, self._line(number, *keys), rule.id)

    def _check_zone(self, zone: str) -> None:
        try:
            ZoneInfo(zone)
        except (KeyError, ValueError, OSError):
            self._refuse(f'zone {zone!r} is unknown; write one such as "Europe/Berlin"', "zone")

    def _read_kernel(self, written: _WrittenKernel) -> Kernel:
        if re.fullmatch(r"https?://[^\s/]+(/\S*)?", written.url) is None:
            text = f"url {written.url!r} must start with https:// or http:// and name a host"
            self._refuse(text, "kernel", "url")
        try:
            seconds = span_seconds(written.deadline, "deadline")
        except ValueError as error:
            self._refuse(str(error), "kernel", "deadline")
        if not 0 < seconds <= DEADLINE_LIMIT:
            text = f"deadline must be above 0 and at most {DEADLINE_LIMIT:g}s"
            self._refuse(text, "kernel", "deadline")
        return Kernel(
            url=written.url,
            deadline_seconds=seconds,
            on_failure=written.on_failure,
            secret_env=written.secret_env,
        )

    def _check_ids(self, rules: Iterable[_WrittenRule]) -> None:
        seen: dict[str, int] = {}
        for number, rule in enumerate(rules):
            if _ID.fullmatch(rule.id) is None:
                text = "id must be of letters, digits, '.', '_' and '-', at most 100 of them"
                self._refuse_rule(number, rule, text, "id")
            if rule.id in seen:
                first = self._line(seen[rule.id], "id")
                text = f"the id is used twice, first in line {first}; ids must be unique"
                self._refuse_rule(number, rule, text, "id")
            seen[rule.id] = number

    def _read_rule(self, number: int, rule: _WrittenRule, *, has_kernel: bool) -> Rule:
        self._check_parts(number, rule, has_kernel=has_kernel)
        self._check_words(number, rule)
        try:
            conditions = compile_match(rule.match)
        except ValueError as error:
            self._refuse_rule(number, rule, str(error), "match")
        verdict = Verdict(rule.then)
        window, expression = self._read_window(number, rule), self._compile(number, rule)
        if window is not None or (expression is not None and expression.reads_clock):
            self._check_late_limits(number, rule)
        return Rule(
            id=rule.id,
            then=verdict,
            reason=rule.reason,
            match=rule.match,
            when=rule.when,
            approve=self._read_approval(number, rule) if verdict is Verdict.APPROVE else None,
            constrain=self._read_constraints(number, rule),
            window=window,
            conditions=conditions,
            expression=expression,
        )

    def _check_late_limits(self, number: int, rule: _WrittenRule) -> None:
        """Refuse limits of what a submit has fixed, in a rule that decides only after it."""
        for name in ("network", "cpus", "memory_gb", "priority"):
            if rule.constrain is not None and getattr(rule.constrain, name) is not None:
                text = (
                    f"{name} cannot be limited by a rule that reads the clock, because it decides "
                    "after the submit; leave out hours, weekdays and the clock, or deny instead"
                )
                self._refuse_rule(number, rule, text, "constrain", name)

    def _check_parts(self, number: int, rule: _WrittenRule, *, has_kernel: bool) -> None:
        """Refuse what would have no effect: its author expects one."""
        verdict = Verdict(rule.then)
        if rule.approve is not None and verdict is not Verdict.APPROVE:
            text = f'approve has no effect with then = {rule.then!r}; write then = "approve"'
            self._refuse_rule(number, rule, text, "approve")
        if rule.constrain is not None and verdict in (Verdict.DENY, Verdict.ASK):
            text = f'constrain has no effect with then = {rule.then!r}; write then = "allow"'
            self._refuse_rule(number, rule, text, "constrain")
        if verdict is Verdict.ASK and not has_kernel:
            text = 'then = "ask" needs a [kernel] with the url of the service to ask'
            self._refuse_rule(number, rule, text, "then")
        if rule.reason is not None and not 0 < len(rule.reason) <= 500:
            self._refuse_rule(number, rule, "reason must have 1 to 500 characters", "reason")

    def _check_words(self, number: int, rule: _WrittenRule) -> None:
        for name, words in _WORDS.items():
            asked = getattr(rule.match, name)
            for word in (asked,) if isinstance(asked, str) else asked or ():
                if not is_glob(word) and word not in words:
                    hint = _nearest(word, words)
                    known = ", ".join(filter(None, words))
                    text = f"match: {name} {word!r} does not exist{hint}; there are {known}"
                    self._refuse_rule(number, rule, text, "match", name)

    def _read_approval(self, number: int, rule: _WrittenRule) -> Approval:
        written = rule.approve or _WrittenApproval()
        if not 1 <= written.count <= APPROVALS_LIMIT:
            text = f"count must be between 1 and {APPROVALS_LIMIT}, not {written.count}"
            self._refuse_rule(number, rule, text, "approve", "count")
        if not written.roles:
            text = 'roles must name who may approve: roles = ["operator"]'
            self._refuse_rule(number, rule, text, "approve", "roles")
        for role in written.roles:
            if role not in APPROVER_ROLES:
                known = ", ".join(APPROVER_ROLES)
                text = f"role {role!r} cannot approve{_nearest(role, APPROVER_ROLES)}; "
                self._refuse_rule(number, rule, text + f"there are {known}", "approve", "roles")
        seconds = self._read_span(number, rule, written.expires, "approve", "expires")
        if seconds is not None and not 1 <= seconds <= EXPIRY_LIMIT:
            text = "expires must be between 1 second and 365 days; leave it out for never"
            self._refuse_rule(number, rule, text, "approve", "expires")
        return Approval(
            count=written.count,
            roles=written.roles,
            expires_seconds=round(seconds or 0),
            on_expiry=written.on_expiry,
        )

    def _read_constraints(self, number: int, rule: _WrittenRule) -> Constraints | None:
        written = rule.constrain
        if written is None:
            return None
        for name, least in (("retries", 0), ("cpus", 1), ("memory_gb", 0.001)):
            value = getattr(written, name)
            if value is not None and not least <= value <= 1_000_000:
                text = f"{name} must be between {least:g} and 1000000, not {value:g}"
                self._refuse_rule(number, rule, text, "constrain", name)
        timeout = self._read_span(number, rule, written.timeout, "constrain", "timeout")
        if timeout is not None and not 0.001 <= timeout <= 10 * EXPIRY_LIMIT:
            text = "timeout must be between 1ms and ten years"
            self._refuse_rule(number, rule, text, "constrain", "timeout")
        image = (written.image,) if isinstance(written.image, str) else written.image
        return Constraints(
            timeout_seconds=timeout,
            retries=written.retries,
            cpus=written.cpus,
            memory_mb=None if written.memory_gb is None else max(1, int(written.memory_gb * 1024)),
            network=written.network,
            image=image,
            priority=written.priority,
        )

    def _read_span(
        self, number: int, rule: _WrittenRule, span: str | float | None, *keys: str
    ) -> float | None:
        try:
            return None if span is None else span_seconds(span, keys[-1])
        except ValueError as error:
            self._refuse_rule(number, rule, str(error), *keys)

    def _read_window(self, number: int, rule: _WrittenRule) -> Window | None:
        if rule.hours is None and rule.weekdays is None:
            return None
        hours = None if rule.hours is None else _read_hours(rule.hours)
        if rule.hours is not None and hours is None:
            text = f'hours must be written as "08:00-18:00", not {rule.hours!r}'
            self._refuse_rule(number, rule, text, "hours")
        if rule.weekdays == ():
            text = "weekdays is empty, so that the rule would never match; leave it out"
            self._refuse_rule(number, rule, text, "weekdays")
        for day in rule.weekdays or ():
            if day not in WEEKDAYS:
                text = f"weekday {day!r} does not exist{_nearest(day, WEEKDAYS)}; "
                text += f"there are {', '.join(WEEKDAYS)}"
                self._refuse_rule(number, rule, text, "weekdays")
        days = None if rule.weekdays is None else frozenset(map(WEEKDAYS.index, rule.weekdays))
        return Window(hours=hours, weekdays=days)

    def _compile(self, number: int, rule: _WrittenRule) -> Expression | None:
        if rule.when is None:
            return None
        try:
            if self._language is None:
                self._language = Language(TYPES)
            return self._language.compile(rule.when)
        except ExpressionError as error:
            self._refuse_rule(number, rule, f"when: {error}", "when")


def book_digest(text: str) -> str:
    """Return the digest that names a book."""
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


_EXAMPLES = {
    "version": "version = 1",
    "default": 'default = "deny" or default = "allow"',
    "id": 'id = "a-name-of-the-rule"',
    "then": "then = " + ", ".join(f'"{verdict}"' for verdict in Verdict),
    "url": 'url = "https://…"',
}


def _unknown_text(name: str, path: str) -> str:
    table = _TABLES.get(path)
    fields = table.__struct_fields__ if table is not None else ()
    where = f" in {path.removeprefix('rule.')}" if path not in ("", "rule") else ""
    known = f"; there are {', '.join(fields)}" if fields else ""
    return f"unknown field {name!r}{where}{_nearest(name, fields)}{known}"


def _nearest(word: str, words: Iterable[str]) -> str:
    found = difflib.get_close_matches(word, list(words), n=1, cutoff=0.5)
    return f", did you mean {found[0]!r}?" if found else ""


def _read_hours(text: str) -> tuple[int, int] | None:
    found = _HOURS.fullmatch(text)
    if found is None:
        return None
    first, last = (int(found[n]) * 60 + int(found[n + 1]) for n in (1, 3))
    return (first, last) if first != last and max(first, last) <= DAY_MINUTES else None
