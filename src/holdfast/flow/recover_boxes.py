"""Recover boxes: what becomes of a job whose worker on this host is dead, by what its box shows.

One pure table (D14). Only the holder of the host's lock may ask it: it knows that the owner is
dead, so that nothing has to be waited for.
"""

from __future__ import annotations

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Actor, Job
from holdfast.ports.box import BoxState, Sight

NOT_FOUND = "container_not_found_on_recovery"
LOST = "container_lost_on_recovery"
ADOPTED = frozenset({BoxState.CREATED, BoxState.RUNNING, BoxState.EXITED})
"""What an adopter continues with: it starts what never ran, watches what runs, and ends what has
exited by its exit code. What is lost or absent will never have an exit code."""


def recover_box(job: Job, sight: Sight, actor: Actor, *, now: int, epoch: int) -> c.Adopt | c.Lose:
    """Return the command that the box of a dead worker's job calls for.

    Nothing of a box that was lost may be left by the time its loss is written.
    """
    if sight.state in ADOPTED:
        return c.Adopt(actor=actor, epoch=epoch)
    code = NOT_FOUND if job.claimed else LOST
    return c.Lose(actor=actor, as_of=now, epoch=epoch, error_code=code, gone=True)
