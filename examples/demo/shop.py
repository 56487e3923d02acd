"""The app of the demo, as a user would write it: `holdfast worker examples.demo.shop:app` runs it.

The effects of its steps are lines in files, so that the demo can count them.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from holdfast import Context, Holdfast

PLACE = "DEMO_PLACE"
"""The environment variable with the directory of the files."""
LEASE, HEARTBEAT = "2s", "1s"
"""Short, so that the lease of a dead worker expires soon. The defaults are 60 s and 15 s."""

app = Holdfast(name="demo", unbounded_leases=True)


def place() -> Path:
    """Return the directory of the files."""
    return Path(os.environ.get(PLACE, "."))


def note(book: str, line: str) -> None:
    """Write an effect to a file."""
    with (place() / book).open("a") as file:
        file.write(f"{line}\n")


def charge(order: int) -> str:
    """Charge the card."""
    note("till", f"order {order}: 19.99")
    return f"receipt-{order}"


async def pack(order: int, attempt: int) -> str:
    """Pack the parcel; the first attempt is slow, so that the demo can kill its worker."""
    note("warehouse", f"order {order}, attempt {attempt}")
    await asyncio.sleep(60 if attempt == 1 else 1)
    return f"parcel-{order}"


@app.task(lease=LEASE, heartbeat=HEARTBEAT, backoff="200ms")
async def fulfil(ctx: Context, order: int) -> str:
    """Charge, pack, wait until a person has checked it, and ship."""
    ctx.log.info("attempt %s of order %s", ctx.attempt, order)
    receipt = await ctx.step("charge", charge, order)
    parcel = await ctx.step("pack", pack, order, ctx.attempt)
    ctx.log.info("%s waits to be checked", parcel)
    checked = await ctx.wait_for("checked", timeout="10m")
    await ctx.step("ship", note, "street", parcel)
    return f"{parcel} shipped against {receipt}, checked by {checked['by']}"


@app.task(retries=1, backoff="200ms", lease=LEASE, heartbeat=HEARTBEAT)
async def print_invoice(order: int) -> str:
    """Print an invoice; fails while the printer has no paper."""
    if not (place() / "paper").exists():
        raise ConnectionError("the printer has no paper")
    note("printer", f"invoice {order}")
    return f"invoice {order} is printed"


@app.task(cancel_grace="200ms", lease=LEASE, heartbeat=HEARTBEAT)
async def import_catalogue(ctx: Context, rows: int) -> int:
    """Run for a very long time."""
    for row in range(rows):
        ctx.progress({"row": row, "of": rows})
        await asyncio.sleep(0.2)
    return rows


@app.task(lease=LEASE, heartbeat=HEARTBEAT)
async def refund(order: int) -> str:
    """Pay an order back."""
    note("refunds", f"order {order}: 19.99")
    return f"order {order} is refunded"


@app.task(lease=LEASE, heartbeat=HEARTBEAT)
async def give_away(product: str) -> str:
    """Give a product away."""
    return f"{product} is given away"


@app.task(needs=["gpu"], lease=LEASE, heartbeat=HEARTBEAT)
async def render_video(product: str) -> str:
    """Render a video on a worker with a GPU."""
    return f"{product}.mp4"
