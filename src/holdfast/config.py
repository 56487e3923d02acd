"""The settings file: where it is, what is in it, and how a value is told.

A flag wins over the environment, that over the file, and the file over the default. Which settings
there are is not known here: each has one name, and whoever takes it says so.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from msgspec import Struct

from holdfast.errors import BadConfig

PREFIX = "HOLDFAST_"
FILE_NAME = "holdfast.toml"
SECRETS = ("password", "secret", "token")
HIDDEN = "***"


class ConfigFile(Struct, frozen=True):
    """What a settings file says, as the text that a flag would be given."""

    path: Path
    values: dict[str, str]

    def check_names(self, known: Collection[str]) -> None:
        """Refuse a name that nobody takes: a slip of the pen would pass for a setting."""
        for name in self.values:
            if name not in known:
                close = get_close_matches(name, known, n=1)
                hint = f"; did you mean {close[0]!r}?" if close else "; see `holdfast config`"
                raise BadConfig(f"{self.path}: there is no setting {name!r}{hint}")


def find_file(named: Path | None) -> Path | None:
    """Tell which file counts: the one that was named, else `holdfast.toml` here, if it is there."""
    if named is not None:
        return named
    here = Path(FILE_NAME)
    return here if here.is_file() else None


def read_file(path: Path) -> ConfigFile:
    """Read a settings file."""
    try:
        said = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise BadConfig(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadConfig(f"{path} is not TOML: {error}") from error
    return ConfigFile(path, {name: _text(path, name, value) for name, value in said.items()})


def variable(setting: str) -> str:
    """Tell by which name the environment sets it."""
    return PREFIX + setting.upper()


def shown(name: str, value: str) -> str:
    """Tell a value without what is secret in it."""
    if name.endswith(SECRETS):
        return HIDDEN
    return _without_password(value) if "://" in value else value


def _text(path: Path, name: str, value: Any) -> str:
    """Write a value as a flag would have it."""
    match value:
        case bool():
            return "true" if value else "false"
        case str() | int() | float():
            return str(value)
        case list() if all(isinstance(one, str) for one in value):
            return ",".join(value)
        case _:
            raise BadConfig(
                f"{path}: {name} must be a text, a number, true or false, or a list of texts"
            )


def _without_password(url: str) -> str:
    try:
        parts = urlsplit(url)
    except ValueError:
        return url
    who, at, where = parts.netloc.rpartition("@")
    user, colon, _ = who.partition(":")
    netloc = f"{user}{colon}{HIDDEN if colon else ''}{at}{where}"
    query = [
        (name, HIDDEN if name.endswith(SECRETS) else shown(name, value))
        for name, value in parse_qsl(parts.query, keep_blank_values=True)
    ]
    return urlunsplit(parts._replace(netloc=netloc, query=urlencode(query, safe="*/:@")))
