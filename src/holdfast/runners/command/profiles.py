"""Profiles of agents and secrets, as a worker's host has them: what a submitter may only name.

A profile is how this host runs an agent. Nothing in it is taken from the job: a job names a
profile, and gives a task, a context and a branch, which reach the box as files.
"""

from __future__ import annotations

import logging
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from msgspec import Struct

from holdfast.errors import BadConfig
from holdfast.lifecycle.command_spec import OWN_VARIABLES, PROFILE_NAME, VARIABLE_NAME
from holdfast.ports.box import HOST_NETWORK, NO_NETWORK

log = logging.getLogger(__name__)

Network = Literal["none", "host"]
PLACEHOLDERS = ("task_file", "context_file", "branch", "work", "artifacts")
"""What an argument of a profile may contain in braces."""
NETWORKS = (NO_NETWORK, HOST_NETWORK)
_FIELDS = string.Formatter()


class Secret(Struct, frozen=True, kw_only=True):
    """Where a secret of this host is: in a file, or in a variable of the worker's environment.

    It is read again for each box, and is never part of a setting, an event or an error.
    """

    file: str | None = None
    env: str | None = None

    def faults(self) -> Iterable[tuple[str, str]]:
        """Return what is wrong, each with the name of the field."""
        if (self.file is None) == (self.env is None):
            yield "file", "or `env` must name where the secret is: one of them, not both"
        elif self.file == "":
            yield "file", "must not be empty"
        elif self.env is not None and not VARIABLE_NAME.fullmatch(self.env):
            # Without what it is: that may be the secret itself, by mistake.
            yield "env", "must be the name of a variable"

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return f"file {self.file}" if self.env is None else f"variable {self.env}"


class AgentProfile(Struct, frozen=True, kw_only=True):
    """How this host runs agents that name it."""

    argv: Sequence[str]
    """The program and its arguments, without a shell. `{task_file}`, `{context_file}`, `{branch}`,
    `{work}` and `{artifacts}` are filled in; double a brace to keep it."""
    image: str | None = None
    """The container image; by default that of the host."""
    env: Mapping[str, str] = {}
    """Fixed variables of its environment."""
    env_allowed: Sequence[str] = ()
    """Names of variables that a job may set; by default none. Many variables, such as `PATH` or
    `LD_PRELOAD`, make a program run other code, with the secrets and the network of the profile."""
    tenants: Sequence[str] | None = None
    """The tenants whose jobs may name it; by default all."""
    secrets: Sequence[str] = ()
    """Names of secrets, which it finds as files in /run/secrets."""
    network: Network = "none"
    """`host` lets it use the network of this host."""
    cpus: int | None = None
    """The most CPUs that it gets, whatever a job asks for."""
    memory_gb: int | None = None
    timeout_minutes: int | None = None

    def faults(self) -> Iterable[tuple[str, str]]:
        """Return what is wrong, each with the name of the field."""
        if isinstance(self.argv, str) or not self.argv or not self.argv[0]:
            yield "argv", "must be a list of texts that starts with a program"
        else:
            yield from (("argv", fault) for each in self.argv for fault in _argument_faults(each))
        yield from (("env", fault) for fault in _variable_faults(self.env))
        for name, value in self.env.items():
            if "\0" in value:
                yield "env", f"has a NUL character in {name}"
        for name in ("secrets", "env_allowed", "tenants"):
            if isinstance(getattr(self, name), str):
                yield name, "must be a list of names"
        yield from (("env_allowed", fault) for fault in _variable_faults(self.env_allowed))
        if self.network not in NETWORKS:
            yield "network", f"must be one of {', '.join(NETWORKS)}, not {self.network!r}"
        for name in ("cpus", "memory_gb", "timeout_minutes"):
            number = getattr(self, name)
            if number is not None and (isinstance(number, bool) or number < 1):
                yield name, f"must be a whole number from 1, not {number!r}"


def _variable_faults(names: Iterable[str]) -> Iterable[str]:
    for name in names:
        if not VARIABLE_NAME.fullmatch(name):
            yield f"has {name!r}, which is not the name of a variable"
        elif name.startswith(OWN_VARIABLES):
            yield f"has {name!r}; Holdfast sets {OWN_VARIABLES}… itself"


def _argument_faults(argument: str) -> Iterable[str]:
    if "\0" in argument:
        yield "has a NUL character"
    try:
        parts = list(_FIELDS.parse(argument))
    except ValueError as error:
        yield f"has {argument!r}: {error}; double a brace to keep it"
        return
    for _, field, form, conversion in parts:
        if field is not None and (field not in PLACEHOLDERS or form or conversion):
            known = ", ".join(f"{{{name}}}" for name in PLACEHOLDERS)
            yield f"has {argument!r}; the placeholders are {known}"


def check_agents(
    agents: Mapping[str, AgentProfile], secrets: Mapping[str, Secret], source: str = "Commands"
) -> None:
    """Raise BadConfig for what no worker could do; it names the source, the table and the field."""
    for table, entries in (("agents", agents), ("secrets", secrets)):
        for name, entry in entries.items():
            if not PROFILE_NAME.fullmatch(name):
                text = "a name has letters, digits, '.', '_' and '-'"
                raise BadConfig(f"{source}: [{table}.{name}]: {text}")
            for field, fault in entry.faults():
                raise BadConfig(f"{source}: [{table}.{name}] {field} {fault}")
    for name, profile in agents.items():
        for secret in profile.secrets:
            if secret not in secrets:
                text = f"names the secret {secret!r}, which [secrets] does not have"
                raise BadConfig(f"{source}: [agents.{name}] secrets {text}")


def warn_of_open_profiles(agents: Mapping[str, AgentProfile]) -> None:
    """Report profiles that give every tenant more than a command has."""
    for name, profile in agents.items():
        given = [text for text in ("secrets", "network") if _gives(profile, text)]
        if given and profile.tenants is None:
            text = "[agents.%s] has %s, and jobs of all tenants may name it: set `tenants`"
            log.warning(text, name, " and ".join(given))


def _gives(profile: AgentProfile, what: str) -> bool:
    return profile.network != NO_NETWORK if what == "network" else bool(profile.secrets)


def fill_arguments(argv: Sequence[str], values: Mapping[str, str]) -> tuple[str, ...]:
    """Return the arguments with their placeholders filled in, each still one argument."""
    return tuple(
        "".join(
            text + ("" if field is None else values[field])
            for text, field, _, _ in _FIELDS.parse(each)
        )
        for each in argv
    )
