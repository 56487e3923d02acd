"""A worker's process with one job that never ends; its handler writes on stdout who it is."""

import asyncio

from tests.runners.worlds import world


async def main() -> None:
    async with world() as given:
        await given.run("announce_and_hold")


if __name__ == "__main__":
    asyncio.run(main())
