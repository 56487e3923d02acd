"""What the rules of a book decide on a job: the first that matches, else the default.

An evaluation never raises. A rule whose expression fails matches, and denies: what a rule was meant
to stop must not run because the rule is broken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from operator import itemgetter
from typing import Any, Literal
from weakref import WeakKeyDictionary
from zoneinfo import ZoneInfo

from msgspec import Struct

from holdfast.admission.book import Approval, Book, Constraints, Rule, Verdict, Window
from holdfast.admission.expressions import Expression, Language
from holdfast.admission.matches import FEW, MAPS, Condition, matcher
from holdfast.durations import instant

UNDECIDED = "undecided"
"""The verdict in the first event of a job that is decided on later."""
_REMEMBERED = 4096
"""How many combinations of values a book remembers the rules for: submitters choose them."""


class Decision(Struct, frozen=True, kw_only=True, gc=False):
    """What was decided on a job, by which rule of which book."""

    verdict: Verdict
    rule: str | None
    """None: the default."""
    reason: str | None = None
    rules: str
    """The digest of the book."""
    constraints: Constraints | None = None
    approval: Approval | None = None


class Unknown(Struct, frozen=True, kw_only=True, gc=False):
    """A job that cannot be decided on here."""

    needs: Literal["clock", "kernel"]
    rule: str
    """The rule that needs it."""
    rules: str


class Look(Struct, frozen=True, kw_only=True):
    """How one rule saw a job."""

    rule: str | None
    """None: the default."""
    matched: bool
    why: str


class _Compiled(Struct, frozen=True):
    """A rule as it is evaluated: what is left to check once the remembered part has matched."""

    rule: Rule
    few: tuple[Condition, ...]
    rest: tuple[Condition, ...]
    decision: Decision
    expression: Expression | None

    @property
    def is_remembered(self) -> bool:
        """Whether its expression reads only what candidates are remembered by."""
        read = None if self.expression is None else self.expression.names
        return read is not None and read <= _SCALARS


class _Candidates(Struct, frozen=True):
    """The rules that may match the jobs with certain values."""

    rules: tuple[_Compiled, ...]
    either: Expression | None
    """False if no expression of these rules is true or fails; None: evaluate each."""
    names: frozenset[str]
    """The variables that their expressions read."""


class _Evaluator:
    """The compiled rules of a book."""

    def __init__(self, book: Book) -> None:
        self.language = book.language
        self.zone = book.zone
        self.rules = tuple(_compile(rule, book.digest) for rule in book.rules)
        reason = "no rule matches, and the default is deny"
        self.default = Decision(
            verdict=book.default,
            rule=None,
            reason=reason if book.default is Verdict.DENY else None,
            rules=book.digest,
        )
        self.names = _list_names(self.rules)
        read = {(one.name, one.key) for rule in self.rules for one in rule.few if one.key}
        self.entries = tuple(sorted(read))
        """The entries of maps that rules read."""
        self._candidates: dict[tuple[Any, ...], _Candidates] = {}
        self._eithers: dict[tuple[str, ...], Expression | None] = {}

    def candidates(self, variables: Mapping[str, Any]) -> _Candidates:
        """Return the rules that match a job in what few values occur of."""
        try:
            key = _few(variables)
            if self.entries:
                key += tuple([variables[name].get(entry) for name, entry in self.entries])
            found = self._candidates.get(key)
        # A variable that is missing or of another type, in a case that a person wrote.
        except (AttributeError, KeyError, TypeError):
            return self._find(variables)
        if found is None:
            if len(self._candidates) >= _REMEMBERED:
                self._candidates.clear()
            found = self._candidates[key] = self._find(variables)
        return found

    def _find(self, variables: Mapping[str, Any]) -> _Candidates:
        expressions = _Expressions(self, self.names, variables, None)
        rules = tuple(
            rule
            for rule in self.rules
            if _hold(rule.few, variables)
            and not (rule.is_remembered and expressions.evaluate(rule.expression) is False)
        )
        return _Candidates(rules, self._join(rules), _list_names(rules))

    def _join(self, rules: tuple[_Compiled, ...]) -> Expression | None:
        """Return one expression for those of all rules: most jobs match none of them."""
        texts = tuple(
            rule.rule.when
            for rule in rules
            if rule.rule.when is not None
            and rule.expression is not None
            and not rule.expression.reads_clock
        )
        if len(texts) < 2 or self.language is None:
            return None
        if texts not in self._eithers:
            self._eithers[texts] = self.language.either(texts)
        return self._eithers[texts]


_SCALARS = frozenset(FEW)
_INDEXED = _SCALARS | set(MAPS)
_few = itemgetter(*FEW)
_evaluators: WeakKeyDictionary[Book, _Evaluator] = WeakKeyDictionary()


def _evaluator_of(book: Book) -> _Evaluator:
    found = _evaluators.get(book)
    if found is None:
        found = _evaluators[book] = _Evaluator(book)
    return found


def _compile(rule: Rule, digest: str) -> _Compiled:
    return _Compiled(
        rule=rule,
        few=tuple(one for one in rule.conditions if one.name in _INDEXED),
        rest=tuple(one for one in rule.conditions if one.name not in _INDEXED),
        decision=Decision(
            verdict=rule.then,
            rule=rule.id,
            reason=rule.reason,
            rules=digest,
            constraints=rule.constrain,
            approval=rule.approve,
        ),
        expression=rule.expression,
    )


def _list_names(rules: tuple[_Compiled, ...]) -> frozenset[str]:
    names = (rule.expression.names for rule in rules if rule.expression is not None)
    return frozenset[str]().union(*names)


def _hold(conditions: tuple[Condition, ...], variables: Mapping[str, Any]) -> bool:
    # Not `all()`: its generator costs more than the two or three conditions of a rule.
    for condition in conditions:  # noqa: SIM110
        if not condition.holds(variables.get(condition.name)):
            return False
    return True


class _Expressions:
    """The expressions of a book on one job; the variables are prepared when first needed."""

    def __init__(
        self,
        evaluator: _Evaluator,
        names: frozenset[str],
        variables: Mapping[str, Any],
        now: datetime | None,
    ) -> None:
        self._language = evaluator.language
        self._names = names
        self._variables, self._now = variables, now
        self._activation: Any = None

    def evaluate(self, expression: Expression | None) -> bool | str:
        """Return whether an expression is true, or why it is neither true nor false."""
        language = self._language
        if language is None or expression is None:
            return "the book was read without its expressions"
        if self._activation is None:
            try:
                self._activation = self._prepare(language)
            except Exception as error:  # noqa: BLE001  whatever it is, the rule must fail closed
                return str(error) or type(error).__name__
        return language.evaluate(expression, self._activation)

    def _prepare(self, language: Language) -> Any:
        variables = self._variables
        if self._now is not None:
            clock = {"hour": self._now.hour, "weekday": self._now.isoweekday()}
            variables = {**variables, **clock}
        return language.activate(variables, self._names)


def judge(
    book: Book, variables: Mapping[str, Any], *, now: int | None = None
) -> Decision | Unknown:
    """Return what a book decides on a job: by its first rule that matches, else by its default.

    `now` is the time of the store's clock; without it, a rule that reads the clock is Unknown.
    """
    evaluator = _evaluator_of(book)
    candidates = evaluator.candidates(variables)
    local = None if now is None else local_time(now, book.zone)
    expressions = _Expressions(evaluator, candidates.names, variables, local)
    none_true = False
    for one in candidates.rules:
        if one.rest and not _hold(one.rest, variables):
            continue
        if one.expression is not None and not one.expression.reads_clock:
            if candidates.either is not None and not none_true:
                none_true = expressions.evaluate(candidates.either) is False
            if none_true:
                continue
        found = _decide(one, variables, expressions, local)
        if found is not None:
            return found
    return evaluator.default


def _decide(
    one: _Compiled,
    variables: Mapping[str, Any],
    expressions: _Expressions,
    now: datetime | None,
) -> Decision | Unknown | None:
    """Return what a rule decides on a job that its structured part matches; None: nothing."""
    rule, expression = one.rule, one.expression
    reads_clock = expression is not None and expression.reads_clock
    if expression is not None and not reads_clock:
        true = expressions.evaluate(expression)
        if true is not True:
            return _fail(one, true) if isinstance(true, str) else None
    if rule.window is not None or reads_clock:
        if now is None:
            return Unknown(needs="clock", rule=rule.id, rules=one.decision.rules)
        if rule.window is not None and not is_open(rule.window, now):
            return None
        if expression is not None and reads_clock:
            true = expressions.evaluate(expression)
            if true is not True:
                return _fail(one, true) if isinstance(true, str) else None
    if rule.then is Verdict.ASK:
        return Unknown(needs="kernel", rule=rule.id, rules=one.decision.rules)
    refused = rule.constrain and why_outside(rule.constrain, variables)
    return _deny(one, refused) if refused else one.decision


def _fail(one: _Compiled, why: str) -> Decision:
    return _deny(one, f"rule {one.rule.id} failed and denies: {why}")


def _deny(one: _Compiled, reason: str) -> Decision:
    return Decision(
        verdict=Verdict.DENY, rule=one.rule.id, reason=reason[:500], rules=one.decision.rules
    )


def verdict_name(found: Decision | Unknown) -> str:
    """Return the verdict as a person writes it."""
    if isinstance(found, Decision):
        return found.verdict.value
    return Verdict.ASK.value if found.needs == "kernel" else UNDECIDED


def why_outside(constraints: Constraints, variables: Mapping[str, Any]) -> str | None:
    """Return why a job asks for what it may not have at all; None if a limit suffices."""
    image, network = variables.get("image"), variables.get("network")
    if image and constraints.image is not None and not matcher(constraints.image)(image):
        return f"image {image} is not one of {', '.join(constraints.image)}"
    if network == "host" and constraints.network == "none":
        return "the network of the host is not allowed"
    return None


def explain(book: Book, variables: Mapping[str, Any], *, now: int | None = None) -> list[Look]:
    """Return how each rule sees a job, up to the one that decides; the default comes last."""
    evaluator = _evaluator_of(book)
    local = None if now is None else local_time(now, book.zone)
    expressions = _Expressions(evaluator, evaluator.names, variables, local)
    looks: list[Look] = []
    for one in evaluator.rules:
        look = _look(one, variables, expressions, local)
        looks.append(look)
        if look.matched:
            return looks
    why = f"no rule matches: {evaluator.default.verdict}"
    return [*looks, Look(rule=None, matched=True, why=why)]


def _look(
    one: _Compiled,
    variables: Mapping[str, Any],
    expressions: _Expressions,
    now: datetime | None,
) -> Look:
    missed = next(_list_missed(one.rule, variables), None)
    if missed is not None:
        return Look(rule=one.rule.id, matched=False, why=missed)
    match _decide(one, variables, expressions, now):
        case None if one.rule.window is not None and now and not is_open(one.rule.window, now):
            return Look(rule=one.rule.id, matched=False, why=f"outside its hours at {now:%a %H:%M}")
        case None:
            return Look(rule=one.rule.id, matched=False, why=f"when is false: {one.rule.when}")
        case Unknown(needs=needs):
            return Look(rule=one.rule.id, matched=True, why=f"needs the {needs} to decide")
        case Decision(verdict=verdict, reason=reason):
            why = f"{verdict}: {reason}" if reason else str(verdict)
            return Look(rule=one.rule.id, matched=True, why=why)


def _list_missed(rule: Rule, variables: Mapping[str, Any]) -> Iterator[str]:
    for condition in rule.conditions:
        value = variables.get(condition.name)
        if not condition.holds(value):
            yield f"{condition.name} is {value!r:.200}, not {condition.text}"


def local_time(now: int, zone: str) -> datetime:
    """Return a time of the store's clock as a book's zone has it."""
    return instant(now).astimezone(_zone(zone))


@lru_cache(maxsize=8)
def _zone(zone: str) -> Any:
    return UTC if zone == "UTC" else ZoneInfo(zone)


def is_open(window: Window, now: datetime) -> bool:
    """Return whether a rule counts at this time of its zone."""
    day = now
    if window.hours is not None:
        first, last = window.hours
        minute = now.hour * 60 + now.minute
        if first > last and minute < last:
            # After midnight: it opened on the day before.
            day = now - timedelta(days=1)
        elif not (first <= minute < last or (first > last and minute >= first)):
            return False
    return window.weekdays is None or day.weekday() in window.weekdays
