"""The store alone as a contender: what `make bench-store` cycles, without worker and handlers.

Claim, decide and commit in batches, one after the other, on the store's public protocol: what a
worker adds to it is the distance between this and Holdfast.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.contenders import StoreContender
from bench.measure import batches
from bench.programs.replies import Reply, Stretch, Verb, peak_memory_bytes, reply_to
from holdfast import __version__
from holdfast.lifecycle.states import State
from holdfast.wiring import make_store, migrate, read_address

BATCH = 500


async def version(_: argparse.Namespace) -> Reply:
    """Return what it is."""
    return {
        "version": __version__,
        "keeps": "the whole job: its row, every event, arguments and result",
        "settings": f"no worker: claim and commit in batches of {BATCH}, in turn",
    }


async def setup(given: argparse.Namespace) -> Reply:
    """Make the schema."""
    await migrate(read_address(given.url))
    return {}


async def fill(given: argparse.Namespace) -> Reply:
    """Submit decided jobs."""
    prepared = list(batches(given.jobs, BATCH))
    async with _opened(given.url) as contender:
        stretch = Stretch()
        for batch in prepared:
            await contender.submit(batch)
        return stretch.reply(given.jobs)


async def drain(given: argparse.Namespace) -> Reply:
    """Cycle until a number of jobs are done."""
    async with _opened(given.url) as contender:
        stretch, done = Stretch(), 0
        while done < given.jobs:
            got = await contender.cycle(min(BATCH, given.jobs - done))
            if not got:
                raise RuntimeError(f"only {done} of {given.jobs} jobs could be claimed")
            done += got
        return stretch.reply(given.jobs, rss=peak_memory_bytes())


async def left(given: argparse.Namespace) -> Reply:
    """Count the jobs that have not succeeded."""
    async with _opened(given.url) as contender:
        counts = await contender.store.counts()
    return {"left": sum(one.jobs for one in counts if one.state is not State.SUCCEEDED)}


@asynccontextmanager
async def _opened(url: str) -> AsyncIterator[StoreContender]:
    contender = StoreContender(make_store(read_address(url)))
    await contender.open()
    try:
        yield contender
    finally:
        await contender.close()


VERBS: dict[str, Verb] = {verb.__name__: verb for verb in (version, setup, fill, drain, left)}

if __name__ == "__main__":
    reply_to(VERBS)
