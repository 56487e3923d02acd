"""The demo's app, as a user would write it: `holdfast worker examples.demo.shop:app` runs it.

What its steps do to the world are lines in files beside the database, so that they can be counted.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from holdfast import Context, Holdfast

PLACE = "DEMO_PLACE"
"""The environment variable that says where the files are."""
LEASE, HEARTBEAT = "2s", "1s"
"""So that nobody has to wait until a dead worker's lease has passed. Else: 60 s and 15 s."""

app = Holdfast(name="demo", unbounded_leases=True)


def place() -> Path:
    """Tell where the shop's files are."""
    return Path(os.environ.get(PLACE, "."))


def note(book: str, line: str) -> None:
    """Do something to the world."""
    with (place() / book).open("a") as file:
        file.write(f"{line}\n")


def charge(order: int) -> str:
    """Take the money."""
    note("till", f"order {order}: 19.99")
    return f"receipt-{order}"


async def pack(order: int, attempt: int) -> str:
    """Pack the parcel: slowly at first, so that the worker can be killed meanwhile."""
    note("warehouse", f"order {order}, attempt {attempt}")
    await asyncio.sleep(60 if attempt == 1 else 1)
    return f"parcel-{order}"


@app.task(lease=LEASE, heartbeat=HEARTBEAT, backoff="200ms")
async def fulfil(ctx: Context, order: int) -> str:
    """Charge, pack, wait for somebody who checks it, and ship."""
    ctx.log.info("attempt %s of order %s", ctx.attempt, order)
    receipt = await ctx.step("charge", charge, order)
    parcel = await ctx.step("pack", pack, order, ctx.attempt)
    ctx.log.info("%s waits to be checked", parcel)
    checked = await ctx.wait_for("checked", timeout="10m")
    await ctx.step("ship", note, "street", parcel)
    return f"{parcel} shipped against {receipt}, checked by {checked['by']}"


@app.task(retries=1, backoff="200ms", lease=LEASE, heartbeat=HEARTBEAT)
async def print_invoice(order: int) -> str:
    """Print; somebody has to see to the paper."""
    if not (place() / "paper").exists():
        raise ConnectionError("the printer has no paper")
    note("printer", f"invoice {order}")
    return f"invoice {order} is printed"


@app.task(cancel_grace="200ms", lease=LEASE, heartbeat=HEARTBEAT)
async def import_catalogue(ctx: Context, rows: int) -> int:
    """Take far longer than anybody wants to wait."""
    for row in range(rows):
        ctx.progress({"row": row, "of": rows})
        await asyncio.sleep(0.2)
    return rows


@app.task(needs=["gpu"], lease=LEASE, heartbeat=HEARTBEAT)
async def render_video(product: str) -> str:
    """Need what not every worker has."""
    return f"{product}.mp4"
