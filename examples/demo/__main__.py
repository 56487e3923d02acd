"""The story: `python -m examples.demo [DIRECTORY]`. Exit code 0 if all of it was as told."""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from examples.demo import shop
from examples.demo.crew import Crew
from examples.demo.stage import LIMIT_SECONDS, Stage, Stuck, until
from holdfast import JobHandle
from holdfast.errors import HoldfastError
from holdfast.lifecycle.states import State


async def main(place: Path) -> int:
    """Play the story in a directory; an earlier demo there is removed first."""
    console = Console(highlight=False)
    url = str(place / "shop.db")
    if not clear(place):
        console.print(f"{place} holds something else than an earlier demo", markup=False)
        return 2
    shop.app.use(url)
    crew = Crew(place, url)
    try:
        async with shop.app, Stage(shop.app, crew.environment, console) as stage:
            await play(stage, crew, place)
        await prove(stage, place)
    except (Stuck, HoldfastError, TimeoutError) as error:
        console.print(f"the demo got stuck: {error!r}; see {place}/*.log", markup=False)
        return 1
    finally:
        crew.abandon()
    return 1 if stage.failures else 0


async def play(stage: Stage, crew: Crew, place: Path) -> None:
    """Let everything happen that can happen to a job."""
    order = await crash(stage, crew, place)
    await mend(stage, place)
    await cancel(stage)
    await unstick(stage, crew)
    await sign(stage, order)
    codes = await crew.stop()
    stage.check(codes == [0] * len(codes), "told to stop, the workers finished and ended")


async def crash(stage: Stage, crew: Crew, place: Path) -> JobHandle[str]:
    """Kill a worker in the middle of a step; another goes on there."""
    stage.chapter("1. A function with steps, and a crash")
    order = await shop.fulfil.options(job_id="order-7").submit(7)
    stage.tell("order-7 is submitted: it is on disk, though no worker is there yet. Now one comes.")
    worker = await crew.start()
    await until(lambda: len(lines(place, "warehouse")) == 1, "the step pack")
    # Not at once: in its very first moments it would not even have written its log.
    await asyncio.sleep(0.5)
    await crew.kill(worker)
    stage.tell(f"It has charged, and was packing. kill -9 {worker.pid}: it is gone without a word.")
    stage.tell("Another worker starts. When the dead one's lease has passed, it goes on …")
    await crew.start()
    await reach(order, State.WAITING)
    packed = len(lines(place, "warehouse"))
    stage.check(len(lines(place, "till")) == 1, "charged once: that step was recorded, so it stays")
    stage.check(packed == 2, "packed again: that step had begun and was not recorded")
    return order


async def mend(stage: Stage, place: Path) -> None:
    """Let a job use up its tries, and redrive its dead letter once the cause is mended."""
    stage.chapter("2. A dead letter, and its redrive")
    invoice = await shop.print_invoice.options(job_id="invoice-7").submit(7)
    await invoice.wait(LIMIT_SECONDS)
    kept = invoice.state is State.DEAD_LETTERED
    stage.check(kept, "its tries are used up, and it is not lost: a dead letter")
    await stage.command("dlq", "list")
    (place / "paper").touch()
    stage.tell("Somebody puts paper into the printer, and sends the letter again:")
    again = await invoice.redrive(reason="paper is in")
    printed = await again.result(LIMIT_SECONDS)
    stage.check(len(lines(place, "printer")) == 1, f"a new job, linked to the old one: {printed}")


async def cancel(stage: Stage) -> None:
    """End a job that runs."""
    stage.chapter("3. A cancel")
    catalogue = await shop.import_catalogue.options(job_id="catalogue").submit(1_000_000)
    await reach(catalogue, State.RUNNING)
    await catalogue.cancel(reason="wrong file")
    state = await catalogue.wait(LIMIT_SECONDS)
    stage.check(state is State.CANCELLED, "its worker ended the handler, then said so")


async def unstick(stage: Stage, crew: Crew) -> None:
    """Ask why a job does not run, and do what the answer says."""
    stage.chapter("4. Why does it not run?")
    video = await shop.render_video.options(job_id="video").submit("lamp")
    await stage.command("why", "video")
    stage.tell("So a worker that has one is started:")
    await crew.start("--capabilities", "gpu")
    stage.check(await video.result(LIMIT_SECONDS) == "lamp.mp4", "it runs")


async def sign(stage: Stage, order: JobHandle[str]) -> None:
    """Send the signal that the first job has been waiting for."""
    stage.chapter("5. A wait, and a signal")
    stage.tell("order-7 was parked all the while: no process, no memory, only its row.")
    await stage.command("signal", "order-7", "checked", "--payload", '{"by": "you"}')
    stage.tell(await order.result(LIMIT_SECONDS))


async def prove(stage: Stage, place: Path) -> None:
    """Show one job's whole ledger; let `verify` have the last word."""
    stage.chapter("6. What happened to order-7")
    await stage.command("show", "order-7")
    await stage.command("logs", "order-7")
    stage.check(len(lines(place, "till")) == 1, "whatever happened: charged once")
    stage.check(len(lines(place, "street")) == 1, "shipped once")
    stage.tell(f"Look around: holdfast ls --url {place / 'shop.db'}")
    stage.chapter("7. Is every job what its events say?")
    if await stage.command("verify"):
        stage.failures.append("verify")


def clear(place: Path) -> bool:
    """Make an empty directory, and never of anything but an earlier demo's; tells if it could."""
    if place.exists() and any(place.iterdir()):
        if not (place / "shop.db").exists():
            return False
        shutil.rmtree(place)
    place.mkdir(parents=True, exist_ok=True)
    return True


def lines(place: Path, book: str) -> Sequence[str]:
    """Read what was done to the world."""
    file = place / book
    return file.read_text().splitlines() if file.exists() else []


async def reach(job: JobHandle[str] | JobHandle[int], state: State) -> None:
    """Wait until a job is in a state."""
    try:
        async with asyncio.timeout(LIMIT_SECONDS):
            while (await job.refresh()).state is not state:  # noqa: ASYNC110  another process's
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise Stuck(f"{job.id} is {job.state}, not {state}") from None


if __name__ == "__main__":
    sys.exit(asyncio.run(main(Path(sys.argv[1] if len(sys.argv) > 1 else "out/demo").resolve())))
