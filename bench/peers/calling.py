"""How a contender's program is called: one verb a run; the last line it prints is the answer."""

import json
import subprocess
from collections.abc import Sequence
from typing import Any


class ProgramError(Exception):
    """A contender's program failed, or did not answer in time."""


def call(argv: Sequence[str], verb: str, *options: str, limit_seconds: float) -> dict[str, Any]:
    """Run one verb to its end, and hand back what it answered."""
    command = [*argv, verb, *options]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=limit_seconds
        )
    except subprocess.TimeoutExpired as error:
        raise ProgramError(f"`{' '.join(command)}` ran over {limit_seconds:.0f} s") from error
    if done.returncode != 0:
        said = "\n".join(done.stderr.strip().splitlines()[-15:])
        raise ProgramError(f"`{' '.join(command)}` failed (exit {done.returncode}):\n{said}")
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return answer
