"""The part of the demo about agents: one that reports, asks a person, and writes what it made."""

from __future__ import annotations

import asyncio

from examples.demo import shop
from examples.demo.display import LIMIT_SECONDS, Display
from examples.demo.workers import ROOT
from holdfast import JobHandle
from holdfast.lifecycle.states import State

PROFILES = ROOT / "examples" / "agents" / "holdfast.toml"
"""What the workers of the demo know about agents."""


async def run(display: Display) -> None:
    """Show an agent that asks before it acts."""
    display.chapter("9. An agent that asks before it acts")
    writer = await shop.app.submit_command(
        type="agent",
        job_id="writer",
        profile="scripted",
        task="Write a report.",
        git_branch="report",
        cpus=1,
        memory_gb=1,
    )
    async with asyncio.timeout(LIMIT_SECONDS):
        while not await _has_asked(writer):  # noqa: ASYNC110  another process
            await asyncio.sleep(0.1)
    await display.command("why", writer.id)
    await display.command("signal", writer.id, "answer:write", "--payload", '"yes"')
    state = await writer.wait(LIMIT_SECONDS)
    await display.command("logs", writer.id)
    steps = [event.facts["step"] for event in await writer.events() if "step" in event.facts]
    display.check(
        state is State.SUCCEEDED and steps == ["plan", "answer:write", "answer:write"],
        "its box ran on while a person answered, and its history has the question and the answer",
    )


async def _has_asked(writer: JobHandle[object]) -> bool:
    return any(event.type == "step_started" for event in await writer.events())
