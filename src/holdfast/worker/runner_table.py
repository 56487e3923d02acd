"""Which runner runs a job: by its kind, and by what its runners have."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from holdfast.lifecycle.record import Job
from holdfast.lifecycle.states import Kind
from holdfast.lifecycle.terms import TaskTerms
from holdfast.ports.runner import Runnable, Runner

Runners: TypeAlias = Mapping[Kind, Sequence[Runner[Any, Any]]]
"""The runners of a kind; the first that has what a job names runs it."""


class RunnerTable:
    """The runners of one worker."""

    def __init__(self, runners: Runners) -> None:
        self._runners = runners
        self._offers: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[Runner[Any, Any]]:
        return (runner for runners in self._runners.values() for runner in runners)

    def find(self, job: Job) -> tuple[Runner[Any, Any], Runnable] | None:
        """Return the runner of a job and what it is to run; None where this worker has neither."""
        for runner in self._runners.get(job.kind, ()):
            if (runnable := runner.find(job)) is not None:
                return runner, runnable
        return None

    def offers(self) -> tuple[str, ...]:
        """Return all that jobs may name; an app may register more while it runs."""
        offered = [runner.offers() for runner in self]
        # Runners may offer more later, never less: the same number is the same names.
        if sum(map(len, offered)) != len(self._offers):
            self._offers = tuple(sorted(name for names in offered for name in names))
        return self._offers

    def published(self) -> list[TaskTerms]:
        """Return the terms under which jobs can be submitted by name."""
        return [terms for runner in self for terms in runner.published()]

    def join(self, more: Runners) -> RunnerTable:
        """Return a table with the runners of more kinds."""
        return RunnerTable({**self._runners, **more})

    async def close(self) -> None:
        """Close all runners."""
        await asyncio.gather(*(runner.close() for runner in self))
