"""`holdfast limits`: queues and sets of needs of one tenant, and pending signals of one job.

Exit codes: 0 answered, 2 bad input, 3 the store failed.
"""

from __future__ import annotations

from typing import Annotated

import typer
from msgspec.structs import asdict, replace

from holdfast.cli.running import DEFAULT_URL, AsJson, Url, out, print_json, run, with_store
from holdfast.ports import Limits, Store
from holdfast.stores.tenant_limits import MOST_SIGNALS

Queues = Annotated[
    int | None, typer.Option("--queues", min=1, help="Set how many queues a tenant may have.")
]
Needs = Annotated[
    int | None, typer.Option("--needs", min=1, help="Set how many sets of needs it may have.")
]

Signals = Annotated[
    int | None,
    typer.Option(
        "--signals", min=1, max=MOST_SIGNALS, help="Set how many pending signals a job may have."
    ),
]


def register(app: typer.Typer) -> None:
    """Add this command."""
    app.command()(limits)


def limits(
    url: Url = DEFAULT_URL,
    queues: Queues = None,
    needs: Needs = None,
    signals: Signals = None,
    as_json: AsJson = False,
) -> None:
    """Show, or set, how many queues and sets of needs a tenant, and signals a job may have.

    A submit that would bring one more name is refused (too_many_names), and so is a signal to a job
    that has as many which no wait has consumed (too_many_signals). What there is already stays.
    """

    async def work(store: Store) -> Limits:
        found = await store.limits()
        wanted = {
            name: number
            for name, number in (("queues", queues), ("needs", needs), ("signals", signals))
            if number is not None
        }
        if wanted:
            found = replace(found, **wanted)
            await store.set_limits(found)
        return found

    found = run(with_store(url, work))
    if as_json:
        print_json(asdict(found))
    else:
        out.print(f"queues per tenant: {found.queues:,}")
        out.print(f"sets of needs per tenant: {found.needs:,}")
        out.print(f"pending signals per job: {found.signals:,}")
