"""The version after this one, in a process of its own: it knows one migration more.

`python -m tests.worker.next_version migrate|work URL MIN_READER`
"""

from __future__ import annotations

import asyncio
import sys

from holdfast import Holdfast
from holdfast.stores.postgres import migrate as postgres
from holdfast.stores.sql_files import read_migrations
from holdfast.stores.sqlite import migrate as sqlite
from holdfast.wiring import migrate, read_address


def know_one_more(min_reader: str) -> None:
    """Add a migration, beside which versions that know `min_reader` may go on."""

    def listed(package: str) -> list[tuple[int, str, str]]:
        known = read_migrations(package)
        text = f"-- min_reader: {min_reader}\nCREATE TABLE later (number integer)"
        return [*known, (known[-1][0] + 1, "later", text)]

    postgres.read_migrations = sqlite.read_migrations = listed  # type: ignore[attr-defined]


def double(number: int) -> int:
    """Do the work."""
    return 2 * number


async def work(url: str) -> None:
    """Work until killed."""
    app = Holdfast(url)
    app.task(double)
    async with app, app.worker():
        print("working", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    know_one_more(sys.argv[3])
    if sys.argv[1] == "migrate":
        asyncio.run(migrate(read_address(sys.argv[2])))
    else:
        asyncio.run(work(sys.argv[2]))
