"""`holdfast config`, and the settings file behind every command.

The options of all commands are the settings: whatever can come from the environment as
`HOLDFAST_NAME` can come from the file as `name`.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec import Struct, to_builtins
from typer import Argument

from holdfast.cli.options import AsJson
from holdfast.cli.output import align_table, plain, print_answer
from holdfast.config import PREFIX, ConfigFile, find_file, mask_secrets, read_file, variable
from holdfast.errors import BadConfig

NOT_IN_FILE = "config"
"""The one setting that the settings file cannot hold: where it is itself."""
DEFAULT = "default"
INVALID = "(invalid)"


class Setting(Struct, frozen=True, kw_only=True):
    """A setting with the value that is in force."""

    name: str
    value: str | None
    source: str
    """The flag, the variable or the file that it is from; or `default`."""


def apply_file(ctx: typer.Context, named: Path | None) -> None:
    """Use the settings file for what neither a flag nor the environment sets."""
    path = find_file(named)
    if path is None:
        return
    file = read_file(path)
    settings = {name: (owner, option) for owner, name, option in _walk_settings(ctx, ctx.command)}
    file.check_names(settings)
    for name, value in file.values.items():
        _check_value(file, name, value, *settings[name])
    ctx.obj = file
    ctx.default_map = _build_defaults(ctx.command, file)


def show_config(
    ctx: typer.Context,
    command: Annotated[
        str | None,
        Argument(help="Only those of this command, with the flags that follow: up, serve, …"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show which settings are in force, and where each of them is from.

    A flag wins over the environment (HOLDFAST_…), that over holdfast.toml, and that over the
    default. Passwords are not shown.
    """
    settings = _collect_settings(ctx, command)
    file = ctx.find_root().obj
    answer = {
        "file": None if file is None else str(file.path),
        "settings": {
            one.name: {"value": one.value, "from": one.source, "variable": variable(one.name)}
            for one in settings
        },
        # Where secrets are, never what they are.
        "agents": {} if file is None else to_builtins(file.agents),
        "secrets": {} if file is None else to_builtins(file.secrets),
        "topics": {} if file is None else to_builtins(file.topics.routes),
    }
    rows = [
        (one.name, plain("–" if one.value is None else one.value), plain(one.source))
        for one in settings
    ]
    if file is not None:
        rows += _list_tables(file)
    note = f"settings file: {'none' if file is None else plain(file.path)}"
    lines = align_table(("SETTING", "VALUE", "FROM"), rows)
    print_answer(answer, *lines, notes=[note], as_json=as_json)


def _list_tables(file: ConfigFile) -> list[tuple[str, str, str]]:
    """Return what has no flag: how agents are run, where secrets are, where topics lead."""
    agents = ((f"agents.{name}", shlex.join(one.argv)) for name, one in file.agents.items())
    secrets = ((f"secrets.{name}", one.place) for name, one in file.secrets.items())
    topics = ((f"topics.{name}", one.pool) for name, one in file.topics.routes.items())
    source = plain(file.path)
    rows = (*agents, *secrets, *topics)
    return [(plain(name), plain(text), source) for name, text in rows]


def _collect_settings(ctx: typer.Context, command: str | None) -> list[Setting]:
    root = ctx.find_root()
    commands: dict[str, Any] = root.command.commands  # type: ignore[attr-defined]
    if command is not None:
        if command not in commands:
            raise BadConfig(f"no such command: {command!r}")
        return list(_read_command_settings(root, command, commands[command], ctx.args))
    found: dict[str, Setting] = {}
    for name, each in commands.items():
        for one in _read_command_settings(root, name, each, ()):
            # Commands differ only in defaults; one without a default takes it from elsewhere.
            if one.name not in found or found[one.name].value is None:
                found[one.name] = one
    return sorted(found.values(), key=lambda one: one.name)


def _read_command_settings(
    root: Any, name: str, command: Any, flags: Sequence[str]
) -> Iterator[Setting]:
    """Return the settings of a command, by the same parsing that it goes through itself."""
    if hasattr(command, "commands"):
        return
    context = command.make_context(name, list(flags), parent=root, resilient_parsing=not flags)
    for option in command.params:
        if (setting := _setting_name(option)) is not None:
            yield _read_setting(context, option, setting)


def _read_setting(context: Any, option: Any, name: str) -> Setting:
    value, source = context.params.get(option.name), _describe_source(context, option, name)
    if value is None:
        # A given value that parses to none is invalid; the command itself explains why.
        return Setting(name=name, value=None if source == DEFAULT else INVALID, source=source)
    return Setting(name=name, value=mask_secrets(name, _text(value)), source=source)


def _describe_source(context: typer.Context, option: Any, setting: str) -> str:
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


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _check_value(file: ConfigFile, name: str, value: str, context: Any, option: Any) -> None:
    try:
        option.process_value(context, value)
    except typer.BadParameter as error:
        raise BadConfig(f"{file.path}: {name}: {error.message}") from error


def _walk_settings(context: Any, command: Any) -> Iterator[tuple[Any, str, Any]]:
    """List the settings of a command and of those below it."""
    for option in command.params:
        if (name := _setting_name(option)) is not None:
            yield context, name, option
    for below in getattr(command, "commands", {}).values():
        yield from _walk_settings(context, below)


def _setting_name(option: Any) -> str | None:
    """Return the name of an option's setting; None if it is not a setting."""
    given = option.envvar
    if not isinstance(given, str) or not given.startswith(PREFIX):
        return None
    name = given.removeprefix(PREFIX).lower()
    return None if name == NOT_IN_FILE else name


def _build_defaults(command: Any, file: ConfigFile) -> dict[str, Any]:
    """Return the file's values as defaults of a command and of those below it."""
    made: dict[str, Any] = {
        option.name: file.values[name]
        for option in command.params
        if (name := _setting_name(option)) in file.values and name is not None
    }
    for name, below in getattr(command, "commands", {}).items():
        made[name] = _build_defaults(below, file)
    return made
