"""Record the modules of Holdfast whose functions run during a step of a job's path."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import holdfast

_SRC = str(Path(holdfast.__file__).parent) + "/"


class Recorder:
    """Notes every call in this process, in the threads that start while it is installed too."""

    def __init__(self) -> None:
        """Note nothing yet."""
        self._codes: set[CodeType] | None = None
        self._steps: dict[str, list[set[CodeType]]] = {}

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Be the profiler of this thread, and of all that start meanwhile."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if self._codes is not None and event == "call":
            self._codes.add(frame.f_code)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Note the calls of one pass through a step."""
        codes: set[CodeType] = set()
        self._codes = codes
        try:
            yield
        finally:
            self._codes = None
        self._steps.setdefault(name, []).append(codes)

    def modules(self) -> dict[str, set[str]]:
        """Return, by step, the modules that every pass through it crossed.

        Every pass: what runs now and then beside the path is in some of them only.
        """
        return {
            name: set.intersection(*({*map(_module, codes)} for codes in passes)) - {""}
            for name, passes in self._steps.items()
        }


def _module(code: CodeType) -> str:
    """Return the module of Holdfast that a function is in; "" if it is none."""
    if not code.co_filename.startswith(_SRC) or code.co_name == "<module>":
        return ""
    return code.co_filename.removeprefix(_SRC).removesuffix(".py").replace("/", ".")
