"""A minute with Holdfast: jobs are submitted, claimed, run, retried, lost and finished on SQLite,
and then each tells its story from the ledger."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from holdfast.flow.perform import perform
from holdfast.flow.verify import Problem, verify
from holdfast.identity import mint_id, mint_request
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.decide import decide
from holdfast.lifecycle.job import Actor, Change, Draft, JobId, LoggedEvent
from holdfast.lifecycle.payload import decode_body, encode_body
from holdfast.lifecycle.policy import Policy
from holdfast.lifecycle.states import Priority, Role, State
from holdfast.lifecycle.submit import Submission, submit
from holdfast.lifecycle.times import SECOND
from holdfast.ports import Claimed, ClaimRequest, Committed, Store, Submitted
from holdfast.wiring import opened, read_address

GATEWAY = Actor(Role.GATEWAY, "demo")
PEOPLE = Actor(Role.CONTROL, "you")
SWEEP = Actor(Role.RECONCILER, "demo")
BRIEF = Policy(lease=50_000, heartbeat=25_000)
"""A lease of a twentieth of a second, so that losing one does not take a minute."""
console = Console(highlight=False)


async def main(place: str) -> int:
    """Run the demo; the exit code says whether the ledger holds."""
    async with opened(read_address(place)) as store:
        ids = await submit_all(store)
        await finish_greetings(store)
        await lose_a_worker(store)
        await cancel_and_signal(store, ids)
        for name, id_ in ids.items():
            await print_ledger(store, name, id_)
        await print_counts(store)
        return await prove(store)


async def submit_all(store: Store) -> dict[str, JobId]:
    """Submit five jobs in one batch, one of them twice under one key."""
    asked = {
        "greet": Submission(id=mint_id(), task="greet", body=encode_body({"name": "Ada"})),
        "urgent": Submission(id=mint_id(), task="greet", priority=Priority.CRITICAL),
        "fragile": Submission(id=mint_id(), task="fragile", queue="fragile", policy=BRIEF),
        "unwanted": Submission(id=mint_id(), task="greet", queue="later"),
        "report": Submission(id=mint_id(), task="report", queue="later", dedupe_key="report-2026"),
    }
    again = Submission(id=mint_id(), task="report", queue="later", dedupe_key="report-2026")
    answers = await store.submit([submit(one, GATEWAY) for one in [*asked.values(), again]])
    created = [answer.created for answer in answers if isinstance(answer, Submitted)]
    console.print(f"[bold]submitted[/] {len(created)} jobs; {sum(created)} are new, one was a "
                  "repeat under the key report-2026")  # fmt: skip
    return {name: one.id for name, one in asked.items()}


async def claim(store: Store, owner: str, queue: str) -> list[Claimed]:
    """Claim what is due in a queue."""
    request = ClaimRequest(request_id=mint_request(), owner=owner, queues=(queue,), limit=10)
    claimed = await store.claim(request)
    names = ", ".join(f"{one.job.task} ({one.job.priority})" for one in claimed)
    console.print(f"[bold]{owner}[/] claimed {names or 'nothing'}")
    return claimed


def change(record: Draft, command: c.Command) -> Change:
    """Decide a command that the law allows here."""
    decision = decide(record, command)
    assert isinstance(decision, Change), decision
    return decision


async def finish_greetings(store: Store) -> None:
    """Run two jobs; each one's start and finish are one write with two events."""
    changes: list[Change] = []
    for one in await claim(store, "worker-1", "default"):
        owner = Actor(Role.OWNER, "worker-1", one.job.attempt)
        start = change(one.job, c.Start(actor=owner))
        who = (decode_body(one.body) or {}).get("name", "world")
        result = encode_body(f"Hello, {who}!", "result")
        changes += [start, change(start.next, c.Complete(actor=owner, body=result))]
    await store.commit(changes)


async def lose_a_worker(store: Store) -> None:
    """Let a worker die with a job in its hands; a sweep finds it, another worker finishes it."""
    (lost,) = await claim(store, "worker-2", "fragile")
    dead = Actor(Role.OWNER, "worker-2", lost.job.attempt)
    running = await perform(store, lost.job.id, c.Start(actor=dead))
    console.print("[bold]worker-2[/] dies; its lease runs out …")
    await asyncio.sleep(2 * BRIEF.running_lease / SECOND)
    due = await store.due()
    for job in due.jobs:
        await perform(store, job.id, c.Stall(actor=SWEEP, as_of=due.now, reason="lease ran out"))
    late = await store.commit([change(running, c.Complete(actor=dead))])
    verdict = "accepted" if isinstance(late[0], Committed) else "refused, its lease is lost"
    console.print(f"[bold]worker-2[/] comes back and wants to finish: {verdict}")
    (again,) = await claim(store, "worker-3", "fragile")
    alive = Actor(Role.OWNER, "worker-3", again.job.attempt)
    start = change(again.job, c.Start(actor=alive))
    await store.commit([start, change(start.next, c.Complete(actor=alive))])


async def cancel_and_signal(store: Store, ids: dict[str, JobId]) -> None:
    """Cancel one job before it runs; park another until somebody says yes, and fail it then."""
    await perform(store, ids["unwanted"], c.Cancel(actor=PEOPLE, reason="changed my mind"))
    (one,) = await claim(store, "worker-1", "later")
    owner = Actor(Role.OWNER, "worker-1", one.job.attempt)
    start = change(one.job, c.Start(actor=owner))
    await store.commit([start, change(start.next, c.Wait(actor=owner, signal="approved"))])
    await perform(store, one.job.id, c.SignalJob(actor=PEOPLE, name="approved", body=b'"yes"'))
    await perform(store, one.job.id, c.Resume(actor=PEOPLE))
    (back,) = await claim(store, "worker-1", "later")
    owner = Actor(Role.OWNER, "worker-1", back.job.attempt)
    await perform(store, back.job.id, c.Start(actor=owner))
    error = encode_body({"message": "no paper"}, "error")
    letter = c.DeadLetter(
        actor=owner, error_code="dependency_unavailable", stage="exec", body=error
    )
    await perform(store, back.job.id, letter)


async def print_ledger(store: Store, name: str, id_: JobId) -> None:
    """Print one job's events."""
    events = await store.events(id_)
    table = Table(title=f"{name}  [dim]{id_}[/]", title_justify="left", box=SIMPLE_HEAD)
    for heading in ("rev", "event", "state", "try", "by"):
        table.add_column(heading, no_wrap=True)
    table.add_column("says", overflow="fold")
    for event in events:
        table.add_row(
            str(event.rev),
            event.type,
            event.to_state,
            str(event.attempt),
            event.actor,
            _says(event),
        )
    console.print(table)


def _says(event: LoggedEvent) -> str:
    said = event.reason or event.facts.error_code or ""
    return said or ("" if event.body is None else event.body.decode())


async def print_counts(store: Store) -> None:
    """Print how many jobs stand where."""
    by_state: dict[State, int] = {}
    for count in await store.counts():
        by_state[count.state] = by_state.get(count.state, 0) + count.jobs
    line = ", ".join(f"{jobs} {state}" for state, jobs in sorted(by_state.items()))
    console.print(f"[bold]now[/] {line}")


async def prove(store: Store) -> int:
    """Derive every job from its events and compare."""
    problems: list[Problem] = []
    report = await verify(store, on_problem=problems.append)
    for problem in problems:
        console.print(f"job {problem.id}: {problem.text}", markup=False)
    verdict = (
        "[red]the ledger is damaged[/]"
        if problems
        else "[green]every row is what its events say[/]"
    )
    console.print(f"[bold]verify[/] {report.jobs} jobs, {report.events} events: {verdict}")
    return 1 if problems else 0


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        sys.exit(
            asyncio.run(
                main(sys.argv[1] if len(sys.argv) > 1 else str(Path(directory) / "demo.db"))
            )
        )
