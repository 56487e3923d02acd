"""The settings file: where it is, what is in it, and how a value is shown.

A flag wins over the environment, that over the file, and the file over the default. Which settings
there are is not known here: the command line names them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from msgspec import Struct, ValidationError, convert
from msgspec.structs import fields

from holdfast.admission.topics import NO_TOPICS, Topics, read_topics
from holdfast.buses.rules import BusRules
from holdfast.errors import BadConfig
from holdfast.runners.command.profiles import AgentProfile, Secret, check_agents

T = TypeVar("T", bound=Struct)
PREFIX = "HOLDFAST_"
FILE_NAME = "holdfast.toml"
SECRETS = ("password", "secret", "token", "_key")
HIDDEN = "***"


class ConfigFile(Struct, frozen=True):
    """What a settings file sets, as the text that a flag would be given."""

    path: Path
    values: dict[str, str]
    agents: dict[str, AgentProfile] = {}
    """The tables `[agents.NAME]`: they have no flag."""
    secrets: dict[str, Secret] = {}
    """The table `[secrets]`: where each is, never its value."""
    topics: Topics = NO_TOPICS
    """The table `[topics]`: where the jobs of each topic go."""
    buses: dict[str, BusRules] = {}
    """The tables `[buses.NAME]`: how a bridge serves each bus."""

    def check_names(self, known: Collection[str]) -> None:
        """Refuse an unknown name: a typo would pass for a setting."""
        for name in self.values:
            if name not in known:
                close = get_close_matches(name, known, n=1)
                hint = f"; did you mean {close[0]!r}?" if close else "; see `holdfast config`"
                raise BadConfig(f"{self.path}: there is no setting {name!r}{hint}")


def find_file(named: Path | None) -> Path | None:
    """Return the file that was named, else `holdfast.toml` here, if it exists."""
    if named is not None:
        return named
    here = Path(FILE_NAME)
    return here if here.is_file() else None


def read_file(path: Path) -> ConfigFile:
    """Read a settings file."""
    try:
        values = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise BadConfig(f"{path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadConfig(f"{path} is not TOML: {error}") from error
    agents = _read_tables(path, "agents", values.pop("agents", {}), AgentProfile)
    secrets = _read_tables(path, "secrets", values.pop("secrets", {}), Secret)
    check_agents(agents, secrets, str(path))
    topics = read_topics(values.pop("topics", {}), str(path))
    buses = _read_tables(path, "buses", values.pop("buses", {}), BusRules)
    texts = {name: _flag_text(path, name, value) for name, value in values.items()}
    return ConfigFile(path, texts, agents, secrets, topics, buses)


def _read_tables(path: Path, table: str, given: Any, kind: type[T]) -> dict[str, T]:
    """Read a table of tables strictly; an error names the file, the table and the field."""
    if not isinstance(given, dict):
        raise BadConfig(f"{path}: [{table}] must be a table")
    return {name: _read_table(path, f"{table}.{name}", one, kind) for name, one in given.items()}


def _read_table(path: Path, name: str, given: Any, kind: type[T]) -> T:
    known = [field.name for field in fields(kind)]
    if not isinstance(given, dict):
        raise BadConfig(f"{path}: [{name}] must be a table with {', '.join(known)}")
    for field in given:
        if field not in known:
            raise BadConfig(
                f"{path}: [{name}] has no field {field!r}; there are {', '.join(known)}"
            )
    try:
        return convert(given, kind)
    except ValidationError as error:
        # Not the error itself: its text has the path of the field inside the table.
        text, _, where = str(error).partition(" - at `$.")
        field = where.rstrip("`").partition("[")[0]
        raise BadConfig(f"{path}: [{name}] {field}: {text[:1].lower()}{text[1:]}") from None


def variable(setting: str) -> str:
    """Return the environment variable of a setting."""
    return PREFIX + setting.upper()


def mask_secrets(name: str, value: str) -> str:
    """Return a value without the secrets in it."""
    if name.endswith(SECRETS):
        return HIDDEN
    return _without_password(value) if "://" in value else value


def _flag_text(path: Path, name: str, value: Any) -> str:
    """Return a value as the text that a flag would be given."""
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
        # What cannot be read may have a secret in any of these parts.
        return f"{url.partition('://')[0]}://{HIDDEN}" if {"@", "?"} & set(url) else url
    who, at, where = parts.netloc.rpartition("@")
    user, colon, _ = who.partition(":")
    netloc = f"{user}{colon}{HIDDEN if colon else ''}{at}{where}"
    query = [
        (name, HIDDEN if name.endswith(SECRETS) else mask_secrets(name, value))
        for name, value in parse_qsl(parts.query, keep_blank_values=True)
    ]
    return urlunsplit(parts._replace(netloc=netloc, query=urlencode(query, safe="*/:@")))
