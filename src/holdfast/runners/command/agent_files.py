"""What an agent finds in its box as files: what it is to do, how to report, and its secrets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from holdfast.lifecycle.command_spec import CommandSpec
from holdfast.ports.box import Box
from holdfast.runners.command.profiles import AgentProfile, Secret
from holdfast.runners.command.secret_files import SECRETS_MARK, write_secrets

TASK_FILE, CONTEXT_FILE, BRANCH_FILE, HELPER_FILE = "task", "context", "branch", "agent"
ANSWERS = "answers"
"""The directory in the exchange that has an agent's answers."""
HELPER = Path(__file__).with_name("agent.sh")
"""What an agent reports with: a script of a POSIX shell."""


class AgentFiles(Struct, frozen=True):
    """What is written for an agent before its box is made."""

    inputs: Mapping[str, str]
    """By the name of the file."""
    secrets: Mapping[str, Secret]


def choose_files(
    spec: CommandSpec, profile: AgentProfile | None, secrets: Mapping[str, Secret]
) -> AgentFiles:
    """Return the files of an agent; without a profile its box exists already. Pure."""
    names = () if profile is None else profile.secrets
    inputs = {
        TASK_FILE: spec.task or "",
        CONTEXT_FILE: spec.context or "",
        BRANCH_FILE: spec.git_branch or "",
    }
    return AgentFiles(inputs, {name: secrets[name] for name in names})


def make_files(box: Box, files: AgentFiles) -> None:
    """Write an agent's files; done before, it is done again."""
    assert box.inputs is not None
    assert box.exchange is not None
    box.inputs.mkdir(mode=0o700, exist_ok=True)
    for name, text in files.inputs.items():
        (box.inputs / name).write_text(text, "utf-8", newline="")
    helper = box.inputs / HELPER_FILE
    helper.write_bytes(HELPER.read_bytes())
    helper.chmod(0o755)
    for directory in (box.exchange, box.exchange / ANSWERS):
        directory.mkdir(mode=0o700, exist_ok=True)
    if box.secrets is not None and files.secrets:
        (box.directory / SECRETS_MARK).touch()
        write_secrets(box.secrets, files.secrets)
