"""Named points on a job's path at which a test may kill the process, or stop it for a while.

Between a claim and the acknowledged finish there is one at every place where a death leaves
another trace behind. Nothing happens at them unless the environment arms one.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

_actions: dict[str, Callable[[], None]] = {}


def reach(point: str) -> None:
    """Run the action that is armed at a point, if any."""
    # First whether any is armed: points are on the hot path.
    if _actions and (action := _actions.get(point)) is not None:
        action()


def arm(point: str, action: Callable[[], None]) -> None:
    """Run an action whenever a point is reached."""
    _actions[point] = action


def disarm() -> None:
    """Remove all actions."""
    _actions.clear()


def _arm_from(variable: str | None) -> None:
    """Arm what the environment names: `HOLDFAST_DIE_AT=claim.answered:3` dies at the third time."""
    if not variable:
        return
    point, _, times = variable.partition(":")
    left = int(times or 1)

    def die() -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    arm(point, die)


_arm_from(os.environ.get("HOLDFAST_DIE_AT"))
