"""`--app` on every command that works on a store: the app's own address, without repeating it.

The address is, in this order, that of --url, HOLDFAST_URL, the settings file, the app (--app,
HOLDFAST_APP or `app` in the settings file), else holdfast.db.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from holdfast.cli.worker import load_app
from holdfast.config import variable

AppName = Annotated[
    str | None,
    typer.Option(
        "--app",
        metavar="MODULE:APP",
        envvar=variable("app"),
        help="The app whose store it is, unless --url says which: package.module:app.",
    ),
]


def accept_app(app: typer.Typer) -> None:
    """Give the option to every command of an application that takes an address."""
    for command in app.registered_commands:
        if command.callback is not None:
            command.callback = _with_app(command.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            accept_app(group.typer_instance)


def _with_app(command: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(command, eval_str=True)
    parameters = signature.parameters
    # Where the app is an argument, it is one to run, and its address is the default already.
    if "url" not in parameters or "app" in parameters:
        return command

    @wraps(command)
    def on_app(ctx: typer.Context, app: str | None = None, **given: Any) -> Any:
        source = ctx.get_parameter_source("url")
        if app is not None and source is not None and source.name == "DEFAULT":
            given["url"] = load_app(app).url
        return command(**given)

    added = [
        inspect.Parameter("ctx", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context),
        inspect.Parameter("app", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=AppName),
    ]
    # By name alone: typer passes all values by name.
    own = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters.values()]
    made: Any = on_app
    made.__signature__ = signature.replace(parameters=[*own, *added])
    made.__annotations__ = {one.name: one.annotation for one in (*own, *added)}
    return on_app
