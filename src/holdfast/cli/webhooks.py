"""`holdfast webhook`: who is told of the ends of jobs.

Exit codes: 0 done, 1 no such webhook, 2 bad input, 3 the store failed, 4 refused.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from holdfast.cli.asking import OfQueue, OfTask, Tenant, check_texts
from holdfast.cli.running import DEFAULT_URL, AsJson, Url, out, print_json, run, with_operations
from holdfast.cli.showing import plain, say, say_table, short
from holdfast.errors import BadData
from holdfast.json_format import json_of
from holdfast.lifecycle.states import TERMINAL, State
from holdfast.operations import Operations
from holdfast.webhooks import MadeWebhook, WantedWebhook, WebhookList, WebhookView

webhook_app = typer.Typer(help="Webhooks: who is told of the ends of jobs.", no_args_is_help=True)
OfStates = Annotated[
    list[str] | None, typer.Option("--state", help="Of this end alone; may be given again.")
]


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.add_typer(webhook_app, name="webhook")


@webhook_app.command("add")
def add_webhook(
    address: Annotated[str, typer.Argument(metavar="ADDRESS", help="Where to: https://…")],
    *,
    state: OfStates = None,
    queue: OfQueue = None,
    task: OfTask = None,
    tenant: Tenant = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Tell an address of the ends of jobs from now on. Prints the secret, this once."""

    async def work(operations: Operations) -> MadeWebhook:
        check_texts(queue=queue, task=task)
        wanted = WantedWebhook(url=address, states=_states(state), queue=queue, task=task)
        return await operations.add_webhook(wanted)

    made = run(with_operations(url, tenant, work))
    if as_json:
        print_json({"secret": made.secret, "webhook": _data(made.about)})
    else:
        say(out, f"webhook {made.about.id} is told of {plain(_what(made.about))}")
        say(out, _signed_with(made))


@webhook_app.command("ls")
def list_webhooks(
    tenant: Tenant = None,
    before: Annotated[str | None, typer.Option(help="Go on after a page: its next.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="How many.")] = 100,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List webhooks, newest first."""

    async def work(operations: Operations) -> WebhookList:
        return await operations.webhooks(before=before, limit=limit)

    page = run(with_operations(url, tenant, work))
    if as_json:
        print_json({"webhooks": [_data(hook) for hook in page.webhooks], "next": page.next})
    elif page.webhooks:
        rows = [
            (hook.id, short(hook.tenant, 40), short(hook.url, 80), short(_what(hook), 120))
            for hook in page.webhooks
        ]
        say_table(out, ("ID", "TENANT", "ADDRESS", "TOLD OF"), rows)
        if page.next is not None:
            say(out, f"more: --before {page.next}")
    else:
        say(out, "no webhooks")


@webhook_app.command("rm")
def remove_webhook(
    id: Annotated[str, typer.Argument(metavar="ID", help="The webhook's id.")],
    tenant: Tenant = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """End a webhook; what was not delivered yet is not."""

    async def work(operations: Operations) -> WebhookView:
        check_texts(id=id)
        return await operations.remove_webhook(id)

    hook = run(with_operations(url, tenant, work))
    if as_json:
        print_json(_data(hook))
    else:
        say(out, f"webhook {hook.id} is removed")


def _signed_with(made: MadeWebhook) -> str:
    if made.secret is None:
        return "it existed before; its secret was shown when it was made"
    return f"its messages are signed with {made.secret}"


def _states(names: list[str] | None) -> list[State] | None:
    if not names:
        return None
    found = [State.named(name) for name in names]
    if not TERMINAL.issuperset(found):
        ends = ", ".join(sorted(TERMINAL))
        raise BadData(f"--state must be an end: {ends}; not {', '.join(names)}")
    return found


def _what(hook: WebhookView) -> str:
    ends = "every end" if hook.states is None else ", ".join(hook.states)
    places = [
        f"{word} {name}"
        for word, name in (("queue", hook.queue), ("task", hook.task))
        if name is not None
    ]
    return f"{ends} of {' and '.join(places) or 'all jobs'}"


def _data(hook: WebhookView) -> dict[str, Any]:
    data: dict[str, Any] = json_of(hook)
    return data
