"""A job whose last owner was lost: nobody saw its run end, and every end says so."""

from __future__ import annotations

import pytest

from holdfast.lifecycle.derive import derive
from holdfast.lifecycle.states import State
from holdfast.lifecycle.times import SECOND
from tests.lifecycle.histories import BIRTH, History
from tests.lifecycle.lives import lived

HOUR = 3600 * SECOND


def evidence(history: History) -> tuple[str | None, str | None]:
    """What the last event says of the run, and of who ran it."""
    facts = history.events[-1].facts
    return facts.kill, facts.last_owner


@pytest.mark.parametrize(
    "acts",
    [
        ("stall", "cancel"),
        ("stall", "requeue", "cancel"),
        ("stall", "hold", "cancel"),
        ("stall", "time out"),
        ("stall", "requeue", "time out"),
        ("stall", "dead-letter by reconciler"),
        ("stall", "lose"),
        ("lose",),
        ("dead-letter by reconciler",),
        ("time out",),
        ("request cancel", "stall"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("begun", [(), ("start",)], ids=["claimed", "running"])
def test_every_end_after_a_lost_owner_says_that_its_kill_is_unconfirmed(
    begun: tuple[str, ...], acts: tuple[str, ...]
) -> None:
    history = lived("claim", *begun, *acts, deadline_at=BIRTH + HOUR)

    assert history.job.terminal
    assert evidence(history) == ("unconfirmed", "worker-1")
    assert history.job.lost_owner == "worker-1"
    assert derive(history.events) == history.job


@pytest.mark.parametrize(
    "acts",
    [
        ("cancel",),
        ("claim", "release", "cancel"),
        ("claim", "start", "retry", "cancel"),
        ("claim", "start", "wait", "cancel"),
        ("claim", "stall", "claim", "release", "cancel"),
        ("claim", "stall", "claim", "start", "fail"),
    ],
    ids=" ".join,
)
def test_an_end_whose_last_owner_left_by_itself_says_nothing_of_a_kill(
    acts: tuple[str, ...],
) -> None:
    history = lived(*acts)

    assert history.events[-1].facts.kill is None
    assert history.job.lost_owner is None


def test_a_claim_makes_a_new_owner_of_a_stalled_job() -> None:
    history = lived("claim", "stall")
    assert (history.job.state, history.job.lost_owner) == (State.STALLED, "worker-1")
    assert lived("claim", "stall", "claim").job.lost_owner is None
