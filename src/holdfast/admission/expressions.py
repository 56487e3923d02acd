"""Conditions in CEL, the Common Expression Language, behind the one library that evaluates them.

The library returns an error as a value, and the value is true to Python: only its type differs. So
an expression has three results here: true, false, and why it has neither.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

HINT = "pip install 'holdfast[policy]'"
EXPRESSION_LIMIT = 10_000
"""Characters of an expression."""
CLOCK_VARIABLES: dict[str, str] = {"hour": "int", "weekday": "int"}
"""What an expression may read of the store's clock, in the zone of the book."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_ERROR = re.compile(r"<input>:(\d+):(\d+): ([^\n]*)")
_CODE = re.compile(r"^[A-Z_]+: ")
_FRAME = " (in container '')"


class ExpressionError(Exception):
    """An expression that cannot be used; the text explains why."""


class Expression(NamedTuple):
    """A compiled expression."""

    program: Any
    names: frozenset[str]
    """The variables that it may read."""
    reads_clock: bool


class Language:
    """The expressions over one set of typed variables; a name that is not among them is refused."""

    def __init__(self, types: Mapping[str, str]) -> None:
        """Declare the variables by name: `str`, `int`, `list` and `map` (both of `str`)."""
        cel = _library()
        known = {"str": cel.Type.STRING, "int": cel.Type.INT}
        known["list"] = cel.Type.List(cel.Type.STRING)
        known["map"] = cel.Type.Map(cel.Type.STRING, cel.Type.STRING)
        self._bool, self._dyn, self._error = cel.Type.BOOL, cel.Type.DYN, cel.Type.ERROR
        plain = {name: known[kind] for name, kind in types.items()}
        clock = {name: known[kind] for name, kind in CLOCK_VARIABLES.items()}
        self._timeless = cel.NewEnv(variables=plain)
        self._environment = cel.NewEnv(variables=plain | clock)
        self._names = frozenset(plain | clock)

    def compile(self, text: str) -> Expression:
        """Return a compiled expression; raise ExpressionError for one that cannot be true."""
        if len(text) > EXPRESSION_LIMIT:
            raise ExpressionError(f"has {len(text):,} characters; the limit is {EXPRESSION_LIMIT}")
        try:
            program = self._environment.compile(text)
        except RuntimeError as error:
            raise ExpressionError(_describe(str(error))) from None
        kind = program.return_type()
        if kind not in (self._bool, self._dyn):
            raise ExpressionError(f"must be true or false, but is of type {kind.name().lower()}")
        names = frozenset(_NAME.findall(text)) & self._names
        return Expression(program, names, self._reads_clock(text))

    def _reads_clock(self, text: str) -> bool:
        # Not by the names in the text: `hour` may be a text or a variable of a macro there.
        try:
            self._timeless.compile(text)
        except RuntimeError:
            return True
        return False

    def either(self, texts: Iterable[str]) -> Expression | None:
        """Return one expression that is false exactly if all of these are; None: there is none."""
        # Each on lines of its own: it may end with a comment.
        joined = " || ".join(f"(\n{text}\n)" for text in texts)
        try:
            program = self._environment.compile(joined)
        except RuntimeError:
            return None
        return Expression(program, frozenset(_NAME.findall(joined)) & self._names, False)

    def activate(self, variables: Mapping[str, Any], names: Iterable[str]) -> Any:
        """Prepare the variables of a job, once for all expressions that are evaluated for it."""
        return self._environment.Activation(
            {name: variables[name] for name in names if name in variables}
        )

    def evaluate(self, expression: Expression, activation: Any) -> bool | str:
        """Return whether an expression is true, or why it is neither true nor false."""
        try:
            found = expression.program.eval(activation=activation)
            kind = found.type()
            if kind == self._bool:
                return bool(found.value())
            if kind == self._error:
                return _CODE.sub("", str(found.value()))
        # The library raises RuntimeError for its limits, and others for data that it cannot take.
        except Exception as error:  # noqa: BLE001  whatever it is, the rule must fail closed
            return _CODE.sub("", str(error).removesuffix(" [INTERNAL]")) or type(error).__name__
        return f"is of type {kind.name().lower()}, and must be true or false"


@cache
def _library() -> Any:
    try:
        from cel_expr_python import cel
    except ImportError as error:
        raise ExpressionError(f"expressions need the extra 'policy': {HINT}") from error
    return cel


def _describe(error: str) -> str:
    """Return what is wrong with an expression, without the library's frame around it."""
    found = _ERROR.search(error)
    if found is None:
        return _CODE.sub("", error).strip()
    line, column, text = found.groups()
    where = f"column {column}" if line == "1" else f"line {line}, column {column}"
    return f"{text.removesuffix(_FRAME)} ({where})"
