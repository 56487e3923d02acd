"""`holdfast webhook`: the addresses that are notified when jobs end or await an approval."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from holdfast.cli.options import JobCommand, Limit, OfQueue, OfTask, check_texts
from holdfast.cli.output import align_table, plain, short
from holdfast.errors import BadData
from holdfast.lifecycle.states import TERMINAL, State
from holdfast.operations.requests import AddWebhook, ListWebhooks, RemoveWebhook
from holdfast.webhooks.registry import WantedWebhook, WebhookEvent, WebhookView


def add_webhook(
    command: JobCommand,
    address: Annotated[str, Argument(metavar="ADDRESS", help="Where to: https://…")],
    *,
    state: Annotated[
        list[str] | None, Option(help="Only jobs that end in this state; may be repeated.")
    ] = None,
    event: Annotated[
        list[str] | None,
        Option(help="What to notify of: ended (default), approval_requested; may be repeated."),
    ] = None,
    queue: OfQueue = None,
    task: OfTask = None,
) -> None:
    """Notify an address when jobs end, or await an approval.

    Prints the signing secret, this once.
    """
    check_texts(queue=queue, task=task)
    wanted = WantedWebhook(
        url=address,
        states=_read_states(state),
        events=_read_events(event),
        queue=queue,
        task=task,
    )
    made = command.do(AddWebhook(webhook=wanted))
    secret = (
        "it existed before; its secret was shown when it was created"
        if made.secret is None
        else f"its messages are signed with {made.secret}"
    )
    line = f"webhook {made.about.id} is notified when {plain(_describe_occasion(made.about))}"
    command.show({"secret": made.secret, "webhook": made.about}, line, secret)


def list_webhooks(
    command: JobCommand,
    before: Annotated[
        str | None, Option(help="The next page: the `next` of the last page.")
    ] = None,
    limit: Limit = 100,
) -> None:
    """List webhooks, newest first."""
    page = command.do(ListWebhooks(before=before, limit=limit))
    rows = [
        (hook.id, short(hook.tenant, 40), short(hook.url, 80), short(_describe_occasion(hook), 120))
        for hook in page.webhooks
    ]
    lines = (
        align_table(("ID", "TENANT", "ADDRESS", "NOTIFIED WHEN"), rows) if rows else ["no webhooks"]
    )
    if page.next is not None:
        lines.append(f"more: --before {page.next}")
    command.show(page, *lines)


def remove_webhook(
    command: JobCommand,
    id: Annotated[str, Argument(metavar="ID", help="The webhook's id.")],
) -> None:
    """Remove a webhook; messages that are not delivered yet are dropped."""
    check_texts(id=id)
    hook = command.do(RemoveWebhook(webhook=id))
    command.show(hook, f"webhook {hook.id} is removed")


def _read_states(names: list[str] | None) -> list[State] | None:
    if not names:
        return None
    found = [State.named(name) for name in names]
    if not TERMINAL.issuperset(found):
        ends = ", ".join(sorted(TERMINAL))
        raise BadData(f"--state must be a state that a job ends in: {ends}; not {', '.join(names)}")
    return found


def _read_events(names: list[str] | None) -> list[WebhookEvent] | None:
    known = list(WebhookEvent)
    if not set(names or ()) <= set(known):
        raise BadData(f"--event must be {' or '.join(known)}; not {', '.join(names or ())}")
    return [WebhookEvent(name) for name in names] if names else None


def _describe_occasion(hook: WebhookView) -> str:
    named = (("queue", hook.queue), ("task", hook.task))
    places = [f"{word} {name}" for word, name in named if name is not None]
    jobs = f"jobs of {' and '.join(places)}" if places else "jobs"
    ends = f"{jobs} end" if hook.states is None else f"{jobs} end as {' or '.join(hook.states)}"
    asks = f"{jobs} await an approval"
    occasions = {WebhookEvent.ENDED: ends, WebhookEvent.APPROVAL_REQUESTED: asks}
    return ", or ".join(occasions[event] for event in hook.events)
