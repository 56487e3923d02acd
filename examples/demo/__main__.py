"""The demo: `python -m examples.demo [DIRECTORY]`. The exit code is 0 if every check passed."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from examples.demo import commands, rules, shop
from examples.demo.boxes import Boxes
from examples.demo.display import LIMIT_SECONDS, Display, Stuck, reach, until
from examples.demo.workers import Workers
from holdfast import JobHandle
from holdfast.errors import HoldfastError
from holdfast.lifecycle.states import State


async def main(place: Path) -> int:
    """Run the demo in a directory, after removing an earlier demo there."""
    console = Console(highlight=False)
    url = str(place / "shop.db")
    if not clear(place):
        console.print(f"{place} contains files that are not from an earlier demo", markup=False)
        return 2
    shop.app.use(url)
    boxes = Boxes()
    workers = Workers(place, url)
    try:
        await boxes.choose()
        workers.environment |= boxes.environment
        async with shop.app, Display(shop.app, workers.environment, console) as display:
            await run(display, workers, place, boxes)
        await verify(display, place)
    except (Stuck, HoldfastError, TimeoutError) as error:
        console.print(f"the demo got stuck: {error!r}; see {place}/*.log", markup=False)
        return 1
    finally:
        await workers.kill_all()
        boxes.remove()
    return 1 if display.failures else 0


async def run(display: Display, workers: Workers, place: Path, boxes: Boxes) -> None:
    """Show each part of the demo."""
    order = await crash(display, workers, place)
    await redrive(display, place)
    await cancel(display)
    await explain(display, workers)
    await signal(display, order)
    await rules.run(display, place)
    await commands.run(display, workers, boxes)
    codes = await workers.stop()
    display.check(
        codes == [0] * len(codes), "after SIGTERM, the workers finished and exited with 0"
    )


async def crash(display: Display, workers: Workers, place: Path) -> JobHandle[str]:
    """Kill a worker in the middle of a step; another worker continues."""
    display.chapter("1. A function with steps, and a crash")
    order = await shop.fulfil.options(job_id="order-7").submit(7)
    display.write("order-7 is submitted: it is on disk, but no worker runs yet. Now one starts.")
    worker = await workers.start()
    await until(lambda: len(lines(place, "warehouse")) == 1, "the step pack")
    # Not at once: its log lines are written after a short delay.
    await asyncio.sleep(0.5)
    await workers.kill(worker)
    display.write(
        f"It has charged the card and is packing. kill -9 {worker.pid}: the worker is dead."
    )
    display.write(
        "Another worker starts. When the lease of the dead one has expired, it continues …"
    )
    await workers.start()
    await reach(order, State.WAITING)
    packed = len(lines(place, "warehouse"))
    display.check(len(lines(place, "till")) == 1, "charged once: that step was recorded")
    display.check(packed == 2, "packed again: that step had started and was not recorded")
    return order


async def redrive(display: Display, place: Path) -> None:
    """Let a job use up its tries, fix the cause, and redrive its dead letter."""
    display.chapter("2. A dead letter, and its redrive")
    invoice = await shop.print_invoice.options(job_id="invoice-7").submit(7)
    await invoice.wait(LIMIT_SECONDS)
    kept = invoice.state is State.DEAD_LETTERED
    display.check(kept, "no tries are left: the job is a dead letter, and it is not lost")
    await display.command("dlq", "list")
    (place / "paper").touch()
    display.write("A person adds paper to the printer and redrives the dead letter:")
    again = await invoice.redrive(reason="paper added")
    printed = await again.result(LIMIT_SECONDS)
    display.check(
        len(lines(place, "printer")) == 1, f"a new job, linked to the dead one: {printed}"
    )


async def cancel(display: Display) -> None:
    """Cancel a running job."""
    display.chapter("3. A cancel")
    catalogue = await shop.import_catalogue.options(job_id="catalogue").submit(1_000_000)
    await reach(catalogue, State.RUNNING)
    await catalogue.cancel(reason="wrong file")
    state = await catalogue.wait(LIMIT_SECONDS)
    display.check(state is State.CANCELLED, "its worker stopped the handler, then recorded the end")


async def explain(display: Display, workers: Workers) -> None:
    """Ask why a job does not run, and follow the advice."""
    display.chapter("4. Why is it not running?")
    video = await shop.render_video.options(job_id="video").submit("lamp")
    await display.command("why", "video")
    display.write("Start a worker with that capability:")
    await workers.start("--capabilities", "gpu")
    display.check(await video.result(LIMIT_SECONDS) == "lamp.mp4", "it runs")


async def signal(display: Display, order: JobHandle[str]) -> None:
    """Send the signal that the first job waits for."""
    display.chapter("5. A wait, and a signal")
    display.write("order-7 has been waiting: it holds no worker and no memory, only its row.")
    await display.command("signal", "order-7", "checked", "--payload", '{"by": "you"}')
    display.write(await order.result(LIMIT_SECONDS))


async def verify(display: Display, place: Path) -> None:
    """Show the whole history of one job, and verify the ledger."""
    display.chapter("11. What happened to order-7")
    await display.command("show", "order-7")
    await display.command("logs", "order-7")
    display.check(len(lines(place, "till")) == 1, "charged once, in spite of the crash")
    display.check(len(lines(place, "street")) == 1, "shipped once")
    display.write(f"To look around: holdfast ls --url {place / 'shop.db'}")
    display.chapter("12. Does every job match its events?")
    if await display.command("verify"):
        display.failures.append("verify")


def clear(place: Path) -> bool:
    """Make an empty directory; return False if it contains anything but an earlier demo."""
    if place.exists() and any(place.iterdir()):
        if not (place / "shop.db").exists():
            return False
        shutil.rmtree(place)
    place.mkdir(parents=True, exist_ok=True)
    return True


def lines(place: Path, book: str) -> Sequence[str]:
    """Return the recorded effects."""
    file = place / book
    return file.read_text().splitlines() if file.exists() else []


if __name__ == "__main__":
    sys.exit(asyncio.run(main(Path(sys.argv[1] if len(sys.argv) > 1 else "out/demo").resolve())))
