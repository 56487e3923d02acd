"""How many functions Python called for some work, in all its threads: the same on any machine."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any


class Calls(Counter[str]):
    """How often each function was called, by its name."""

    def per_job(self, jobs: int) -> float:
        """Sum up what is called for each job.

        Rounds, polls and turns of the event loop are as many as the machine has time for; no
        function of theirs is called for every other job.
        """
        return sum(number for number in self.values() if number >= jobs / 2) / jobs

    def busiest(self, jobs: int) -> str:
        """Name the functions that are called most often."""
        return ", ".join(f"{name} {number / jobs:.1f}" for name, number in self.most_common(25))


def count_calls(work: Callable[[], object]) -> Calls:
    """Do some work; tells how often each function was called, those written in C too.

    Threads that were there before are not counted.
    """
    python: Counter[CodeType] = Counter()
    native: Counter[str] = Counter()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            python[frame.f_code] += 1
        elif event == "c_call":
            native[getattr(argument, "__qualname__", repr(argument))] += 1

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    found = Calls({f"built-in {name}": number for name, number in native.items()})
    for code, number in python.items():
        found[f"{_module(code)}:{code.co_qualname}"] += number
    return found


def _module(code: CodeType) -> str:
    return code.co_filename.rpartition("/")[2].removesuffix(".py")
