"""A worker's process with one job that never ends; writes down who must end with it.

With the argument `fork` it also forks a copy of itself, which holds all that the worker holds.
"""

import asyncio
import os
import sys

from tests.runners.handlers import sleep_forever
from tests.runners.worlds import world


async def main() -> None:
    async with world() as given:
        running = asyncio.create_task(given.run("hold"))
        pids = await given.heard()
        copy = os.fork() if "fork" in sys.argv else 0
        if copy == 0 and "fork" in sys.argv:
            sleep_forever()
        print(*pids, copy, flush=True)
        await running


if __name__ == "__main__":
    asyncio.run(main())
