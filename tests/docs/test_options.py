"""The page on tasks lists every option of a task and of a job."""

from __future__ import annotations

import pytest

from holdfast.flow.options import JobOptions, TaskOptions
from holdfast.flow.submit_command import ALLOWANCES, CommandOptions
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "tasks.md").read_text("utf-8")


@pytest.mark.parametrize("options", [TaskOptions, JobOptions])
def test_every_option_is_on_the_page(options: type) -> None:
    missing = [name for name in options.__annotations__ if f"`{name}`" not in PAGE]
    assert [name for name in missing if f"`{name}=" not in PAGE] == []


def test_every_option_of_a_command_is_on_its_page() -> None:
    text = (ROOT / "docs" / "how-to" / "commands.md").read_text("utf-8")
    assert [name for name in CommandOptions.__annotations__ if f"`{name}`" not in text] == []


@pytest.mark.req("D2", "D18")
def test_the_page_on_commands_has_their_limits_and_says_that_they_are_best_effort() -> None:
    text = (ROOT / "docs" / "how-to" / "commands.md").read_text("utf-8")
    for name, worker in ALLOWANCES["worker"].items():
        agent = ALLOWANCES["agent"][name]
        default, most = _both(worker.default, agent.default), _both(worker.most, agent.most)
        assert f"| `{name}` | {default} | {most} |" in text
    assert "Commands are **best effort**" in text


def _both(worker: int, agent: int) -> str:
    return str(worker) if worker == agent else f"{worker} (agent: {agent})"
