"""The surface of the command line as lines of text, without what is written for people.

`surface.txt` and `json_fields.txt` keep what these functions returned before the commands were
rewritten. They change only when an option, an exit code or a field of an answer is meant to change.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

import typer

from holdfast import errors
from holdfast.cli.main import app
from holdfast.cli.runtime import exit_code
from holdfast.errors import HoldfastError


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Return all commands, by the words that call them."""
    for name, one in group.commands.items():
        if hasattr(one, "commands"):
            yield from commands(one, (*path, name))
        else:
            yield " ".join((*path, name)), one


def surface() -> Iterator[str]:
    """Describe every command, and the exit code of every error."""
    tree: Any = typer.main.get_command(app)
    for name, command in sorted([("", tree), *commands(tree)]):
        yield f"holdfast {name}".rstrip() + (" (hidden)" if command.hidden else "")
        yield from (f"    {line}" for line in _parameters(command.params))
    yield "exit codes"
    yield from (f"    {code} {number}" for code, number in sorted(_exit_codes().items()))


def fields(answer: Any, path: str = "$") -> Iterator[str]:
    """List the fields of a JSON answer with the types of their values; null shows no type."""
    if isinstance(answer, dict):
        for name, one in answer.items():
            yield from fields(one, f"{path}.{name}")
    elif isinstance(answer, list):
        yield f"{path}[]"
        for one in answer:
            yield from fields(one, f"{path}[]")
    else:
        yield path if answer is None else f"{path} {type(answer).__name__}"


def _parameters(parameters: list[Any]) -> Iterator[str]:
    """Describe arguments in their order, then options by name: the order of those means nothing."""
    arguments = [one for one in parameters if one.param_type_name == "argument"]
    options = [one for one in parameters if one.param_type_name == "option"]
    yield from (_described(one.metavar or one.name, one) for one in arguments)
    yield from sorted(
        _described("/".join([*one.opts, *one.secondary_opts]), one) for one in options
    )


def _described(names: str, one: Any) -> str:
    kind = one.type_descriptor.annotation
    is_choice = isinstance(kind, type) and issubclass(kind, Enum)
    default = one.default.value if isinstance(one.default, Enum) else one.default
    facts = {
        "min": one.min,
        "max": one.max,
        "default": None if default is None else repr(default),
        "env": one.envvar,
    }
    words = ["|".join(each.value for each in kind) if is_choice else kind.__name__]
    words += [f"{name}={value}" for name, value in facts.items() if value is not None]
    marks = {"required": one.required, "many": one.multiple or one.nargs != 1, "hidden": one.hidden}
    return " ".join([names, *words, *(mark for mark, is_set in marks.items() if is_set)])


def _exit_codes() -> dict[str, int]:
    kinds = [one for one in vars(errors).values() if isinstance(one, type)]
    found = [one for one in kinds if issubclass(one, HoldfastError)]
    return {one.code: exit_code(one.__new__(one)) for one in found}
