"""Submits with and without a policy as a contender: `python -m bench.programs.policy submit …`.

`submit` writes batches of jobs in turn without and with a policy of 100 structured rules and 5
expressions, of which none matches most jobs; and measures the judgement alone.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

from bench.programs.replies import Reply, Verb, reply_to
from holdfast.admission.book import read_book
from holdfast.admission.door import judge_birth
from holdfast.lifecycle.record import NewJob
from holdfast.testing.factories import new_job
from holdfast.wiring import opened, read_address

BATCH = 500
MICROSECONDS = 1e6


def write_rules() -> str:
    """Return 100 structured rules and 5 expressions."""
    return "".join(_list_parts())


def _list_parts() -> Iterator[str]:
    yield 'version = 1\ndefault = "allow"\n'
    for number in range(100):
        match = f'tenant = "tenant-{number}", task = "deploy-{number}*"'
        yield f'[[rule]]\nid = "rule-{number}"\nmatch = {{ {match} }}\nthen = "deny"\n'
    for number in range(5):
        when = f'cpus > {number + 4} || labels.exists(name, name == "risk-{number}")'
        yield f'[[rule]]\nid = "when-{number}"\nwhen = \'{when}\'\nthen = "approve"\n'


def make_batch(size: int = BATCH) -> list[NewJob]:
    """Return jobs with a few labels."""
    return [new_job(labels={"team": "a", "env": "dev"}) for _ in range(size)]


async def submit(given: argparse.Namespace) -> Reply:
    """Submit batches, every other one judged."""
    text = write_rules()
    book = read_book(text)
    times: dict[str, list[float]] = {name: [] for name in ("off_us", "with_us", "judge_us")}
    async with opened(read_address(given.url)) as store:
        for number in range(max(2, given.jobs // BATCH)):
            judged = bool(number % 2)
            await store.apply_policy(text if judged else None, actor="control:bench")
            # A process reads and compiles a policy once, when it has changed.
            await store.submit(make_batch(1))
            jobs = make_batch()
            start = time.perf_counter()
            await store.submit(jobs)
            taken = time.perf_counter() - start
            times["with_us" if judged else "off_us"].append(taken / BATCH * MICROSECONDS)
            start = time.perf_counter()
            for job in jobs:
                judge_birth(job, book)
            times["judge_us"].append((time.perf_counter() - start) / BATCH * MICROSECONDS)
    return {"jobs": given.jobs, **times}


VERBS: dict[str, Verb] = {"submit": submit}

if __name__ == "__main__":
    reply_to(VERBS)
