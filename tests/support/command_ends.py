"""Ends commands by hand, as a worker that runs them would: it claims, starts and reports."""

from __future__ import annotations

from typing import Any

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Actor, Job
from holdfast.ports.store import Store
from holdfast.testing.factories import owner_of
from holdfast.testing.store_actions import claim_one, do

CAPABILITIES = frozenset({"command", "runner:podman", "agent:default"})


async def start_command(store: Store, queue: str = "commands") -> Job:
    """Claim and start the command that is due."""
    claimed = await claim_one(store, queue, capabilities=CAPABILITIES)
    return await do(store, claimed.job, c.Start(actor=owner_of(claimed.job)))


async def end_command(store: Store, exit_code: int, queue: str = "commands") -> Job:
    """Run the command that is due to its end."""
    job = await start_command(store, queue)
    return await do(store, job, exited(owner_of(job), exit_code))


def exited(actor: Actor, exit_code: int) -> c.Command:
    """Report how a command exited."""
    if exit_code == 0:
        return c.Complete(actor=actor, exit_code=0, body=b'{"exit_code":0}')
    body = f'{{"type":"CommandFailed","message":"exit code {exit_code}","code":"exit_code"}}'
    fields: dict[str, Any] = {"error_code": "exit_code", "body": body.encode()}
    return c.Fail(actor=actor, exit_code=exit_code, **fields)
