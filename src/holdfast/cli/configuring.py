"""`holdfast config`, and the settings file behind every command.

The options of all commands are the settings: whatever can come from the environment as
`HOLDFAST_NAME` can come from the file as `name`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import Struct

from holdfast.cli.running import AsJson, err, out, print_json, telling
from holdfast.cli.showing import plain, say, say_table
from holdfast.config import PREFIX, ConfigFile, find_file, read_file, shown, variable
from holdfast.errors import BadConfig

ELSEWHERE = "config"
"""The one setting that no file can hold: where the file is."""
DEFAULT = "default"
UNFIT = "(unfit)"


class InForce(Struct, frozen=True, kw_only=True):
    """A setting as it would count now."""

    name: str
    value: str | None
    source: str
    """The flag, the variable or the file that it is from; or `default`."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        "config", context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
    )(show_config)


def apply_file(ctx: typer.Context, named: Path | None) -> None:
    """Let the settings file stand in for what neither a flag nor the environment says."""
    path = find_file(named)
    if path is None:
        return
    file = read_file(path)
    settings = {name: (owner, option) for owner, name, option in _settings(ctx, ctx.command)}
    file.check_names(settings)
    for name, value in file.values.items():
        _check_value(file, name, value, *settings[name])
    ctx.obj = file
    ctx.default_map = _defaults(ctx.command, file)


def show_config(
    ctx: typer.Context,
    command: Annotated[
        str | None,
        typer.Argument(help="Of this command, with whichever flags follow: up, serve, worker, …"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show which settings are in force, and where each of them is from.

    A flag wins over the environment (HOLDFAST_…), that over holdfast.toml, and that over the
    default. Passwords are not shown.
    """
    with telling():
        values = _in_force(ctx, command)
    file = ctx.find_root().obj
    if as_json:
        settings = {
            one.name: {"value": one.value, "from": one.source, "variable": variable(one.name)}
            for one in values
        }
        print_json({"file": None if file is None else str(file.path), "settings": settings})
        return
    say(err, f"settings file: {'none' if file is None else plain(file.path)}")
    say_table(
        out,
        ("setting", "value", "from"),
        [
            (one.name, plain("–" if one.value is None else one.value), plain(one.source))
            for one in values
        ],
    )


def _in_force(ctx: typer.Context, command: str | None) -> list[InForce]:
    root = ctx.find_root()
    commands: dict[str, Any] = root.command.commands  # type: ignore[attr-defined]
    if command is not None:
        if command not in commands:
            raise BadConfig(f"there is no command {command!r}")
        return list(_of_command(root, command, commands[command], ctx.args))
    found: dict[str, InForce] = {}
    for name, each in commands.items():
        for one in _of_command(root, name, each, ()):
            # Commands differ in defaults alone; one that has none has it from somewhere else.
            if one.name not in found or found[one.name].value is None:
                found[one.name] = one
    return sorted(found.values(), key=lambda one: one.name)


def _of_command(root: Any, name: str, command: Any, flags: Sequence[str]) -> Iterator[InForce]:
    """Read what a command would: by the very parsing that it goes through."""
    if hasattr(command, "commands"):
        return
    context = command.make_context(name, list(flags), parent=root, resilient_parsing=not flags)
    for option in command.params:
        if (setting := _name(option)) is not None:
            yield _setting(context, option, setting)


def _setting(context: Any, option: Any, name: str) -> InForce:
    value, source = context.params.get(option.name), _source(context, option, name)
    if value is None:
        # What is said and gives no value could not be read; the command itself says why.
        return InForce(name=name, value=None if source == DEFAULT else UNFIT, source=source)
    return InForce(name=name, value=shown(name, _told(value)), source=source)


def _source(context: typer.Context, option: Any, setting: str) -> str:
    found = context.get_parameter_source(option.name)
    match None if found is None else found.name:
        case "COMMANDLINE":
            return str(option.opts[0]) if option.param_type_name == "option" else "argument"
        case "ENVIRONMENT":
            return variable(setting)
        case "DEFAULT_MAP":
            return str(context.find_root().obj.path)
        case _:
            return DEFAULT


def _told(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _check_value(file: ConfigFile, name: str, value: str, context: Any, option: Any) -> None:
    try:
        option.process_value(context, value)
    except typer.BadParameter as error:
        raise BadConfig(f"{file.path}: {name}: {error.message}") from error


def _settings(context: Any, command: Any) -> Iterator[tuple[Any, str, Any]]:
    """List the settings of a command and of those below it."""
    for option in command.params:
        if (name := _name(option)) is not None:
            yield context, name, option
    for below in getattr(command, "commands", {}).values():
        yield from _settings(context, below)


def _name(option: Any) -> str | None:
    """Tell the setting that an option is for, if it is for one."""
    given = option.envvar
    if not isinstance(given, str) or not given.startswith(PREFIX):
        return None
    name = given.removeprefix(PREFIX).lower()
    return None if name == ELSEWHERE else name


def _defaults(command: Any, file: ConfigFile) -> dict[str, Any]:
    """Say the file's values as defaults of a command and of those below it."""
    made: dict[str, Any] = {
        option.name: file.values[name]
        for option in command.params
        if (name := _name(option)) in file.values and name is not None
    }
    for name, below in getattr(command, "commands", {}).items():
        made[name] = _defaults(below, file)
    return made
