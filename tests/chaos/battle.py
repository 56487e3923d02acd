"""A battle: load and faults side by side for a while; then all is healed, and judged."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

from msgspec import Struct

from tests.chaos.faults import FAULTS, Fault
from tests.chaos.front import Front, front_on
from tests.chaos.load import Load
from tests.support.checker import broken_promises

EXTRA_TRIES = 6
"""How often a fault that has not bitten yet is tried beyond the end."""
BUSY_SECONDS = 10.0
QUIET_SECONDS = 90.0
Say = Callable[[str], None]


class Verdict(Struct, kw_only=True):
    """What a battle showed."""

    engine: str
    seed: int
    jobs: int
    effects: int
    refused_effects: int
    faults: list[tuple[str, int, int, str]]
    """Name, how often injected, how often it bit, and what that means."""
    problems: list[str]

    @property
    def table(self) -> str:
        """Tell the faults as lines."""
        lines = [f"{'fault':<20}{'injected':>9}{'bit':>6}  what counts"]
        lines += [f"{name:<20}{n:>9}{bit:>6}  {effect}" for name, n, bit, effect in self.faults]
        return "\n".join(lines)


async def battle(engine: str, seconds: float, seed: int, directory: Path, say: Say) -> Verdict:
    """Fight, heal, wait until all is quiet, and judge. The seed chooses faults and jobs.

    What processes do at which instant no seed can fix: the same one gives a like battle.
    """
    chance = Random(f"{seed} {engine}")
    async with front_on(engine, directory) as front:
        faults = [kind(front, chance) for kind in FAULTS if engine in kind.engines]
        load = Load(front, chance)
        await front.fill_up()
        loading = asyncio.create_task(load.run())
        try:
            await _fight(front, faults, chance, seconds, say)
            load.stop()
            await loading
        finally:
            loading.cancel()
        problems = await _heal(front, say)
        for fault in faults:
            await fault.look()
            if not fault.bitten:
                problems.append(f"{fault.name}: announced, and never bit")
        say(f"{engine}: judging {len(front.acknowledged)} jobs")
        problems += await broken_promises(front.store, front.resource, front.acknowledged)
        return _verdict(engine, seed, front, faults, problems)


async def _fight(
    front: Front, faults: list[Fault], chance: Random, seconds: float, say: Say
) -> None:
    """Inject faults in random order, each once before any comes again."""
    began = time.monotonic()
    bag: list[Fault] = []
    while time.monotonic() - began < seconds:
        bag = bag or chance.sample(faults, len(faults))
        await _inject(front, bag.pop(), began, say)
    for _ in range(EXTRA_TRIES):
        for fault in faults:
            await fault.look()
        for fault in [fault for fault in faults if not fault.bitten]:
            await _inject(front, fault, began, say)


async def _inject(front: Front, fault: Fault, began: float, say: Say) -> None:
    await _busy(front)
    say(f"{front.engine} {time.monotonic() - began:6.1f} s  {fault.name}")
    fault.injected += 1
    await fault.strike()
    await front.fill_up()
    await fault.rest(0.05, 0.4)


async def _busy(front: Front) -> None:
    """Wait until somebody works: a fault that meets nobody bites nobody."""
    end = time.monotonic() + BUSY_SECONDS
    while not await front.held() and time.monotonic() < end:
        await front.fill_up()
        await asyncio.sleep(0.02)


async def _heal(front: Front, say: Say) -> list[str]:
    """Let everything work again, and wait until nothing is left to do."""
    end = time.monotonic() + QUIET_SECONDS
    while left := await front.unfinished():
        say(f"healed; {len(left)} jobs are unfinished")
        if time.monotonic() > end:
            said = "\n".join(member.said() for member in front.working)
            return [f"{len(left)} jobs did not end within {QUIET_SECONDS:g} s; workers:\n{said}"]
        await front.fill_up()
        await asyncio.sleep(0.5)
    return await _dismiss(front)


async def _dismiss(front: Front) -> list[str]:
    problems = []
    for member in list(front.working):
        member.send(signal.SIGTERM)
        code = await asyncio.to_thread(member.wait)
        if code != 0:
            problems.append(f"a worker ended with {code}: {member.said()}")
    strange = {code for code in front.exits if code not in (0, 7, -signal.SIGKILL)}
    return problems + [f"a worker died by itself, with {code}" for code in strange]


def _verdict(
    engine: str, seed: int, front: Front, faults: list[Fault], problems: list[str]
) -> Verdict:
    effects = [effect for some in front.resource.all().values() for effect in some]
    return Verdict(
        engine=engine,
        seed=seed,
        jobs=len(front.acknowledged),
        effects=len(effects),
        refused_effects=sum(not effect.accepted for effect in effects),
        faults=[(one.name, one.injected, one.bitten, one.effect) for one in faults],
        problems=problems,
    )
