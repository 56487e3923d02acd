"""How a command ends, by its exit code and by what it was stopped for: the table of D4 to D8.

Every end is decided by the law on a real record, as the worker's commit does: one that is refused
would leave the job to its lease.
"""

from __future__ import annotations

from asyncio import CancelledError

import pytest

from holdfast.errors import (
    BoxLost,
    BoxRefused,
    RuntimeTrouble,
    UploadExpired,
    UploadRefused,
    ValidationError,
)
from holdfast.flow.finish import end_after_stop
from holdfast.flow.submit_command import COMMAND_TERMS
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import CONFIRMED, Created
from holdfast.lifecycle.states import CancelMode, Kind, State
from holdfast.ports.box import BoxExit, CommandFailed, CommandStopped
from holdfast.ports.models import claimed_as
from tests.lifecycle.factories import CONTROL, Life

CANCEL, TIMEOUT, DEADLINE = "cancel", "timeout", "deadline"
SHUTDOWN, LEASE_LOST = "shutdown", "lease_lost"
REASONS = (None, CANCEL, TIMEOUT, DEADLINE, SHUTDOWN, LEASE_LOST)

EXITED_ZERO = CommandStopped(BoxExit(code=0))
EXITED = CommandStopped(BoxExit(code=143))
KILLED = CommandStopped(BoxExit(code=137))
NEVER_RAN = CommandStopped(None)
FAILED = CommandFailed(BoxExit(code=3))
OUT_OF_MEMORY = CommandFailed(BoxExit(code=137, out_of_memory=True))
TROUBLES = (BoxRefused("no"), RuntimeTrouble("hangs"), BoxLost("gone"), OSError("disk"))

End = tuple[State, str | None, int | None]
"""The state, the error code, the exit code."""


def command(*, started: bool, cancel: bool) -> Life:
    """Make a command that its worker holds."""
    life = Life(kind=Kind.COMMAND, policy=COMMAND_TERMS, task="worker").claim()
    if started:
        life.start()
    if cancel:
        life.do(c.RequestCancel(actor=CONTROL, mode=CancelMode.SOFT))
    return life


def end(reason: str | None, error: BaseException, *, started: bool = True) -> Life | None:
    """End a command for a reason, or with an error; None if nothing is written."""
    life = command(started=started, cancel=reason == CANCEL)
    claimed = claimed_as(life.record, Created(), None, "c")
    found = end_after_stop(
        reason, life.record, life.owner, error, claimed, lambda: 0.0, started=started
    )
    if found is None:
        return None
    life.do(found)
    return life


def ended(reason: str | None, error: BaseException, *, started: bool = True) -> End | None:
    """Return the end that is on record."""
    life = end(reason, error, started=started)
    if life is None:
        return None
    return life.record.state, life.record.error_code, life.record.exit_code


@pytest.mark.req("D4", "D5")
@pytest.mark.parametrize(
    ("error", "code"), [(FAILED, "command_failed"), (OUT_OF_MEMORY, "oom_killed")]
)
@pytest.mark.parametrize("reason", [None, CANCEL, TIMEOUT, DEADLINE, SHUTDOWN])
def test_a_command_that_ended_by_itself_ends_by_its_code_whatever_was_asked(
    reason: str | None, error: CommandFailed, code: str
) -> None:
    assert ended(reason, error) == (State.FAILED, code, error.exit.code)


@pytest.mark.req("D6", "D7", "D8")
@pytest.mark.parametrize("stopped", [EXITED_ZERO, EXITED, KILLED, NEVER_RAN])
@pytest.mark.parametrize(
    ("reason", "state", "code"),
    [
        (CANCEL, State.CANCELLED, "cancelled"),
        (TIMEOUT, State.TIMED_OUT, "timeout"),
        (DEADLINE, State.TIMED_OUT, "deadline"),
        (SHUTDOWN, State.DEAD_LETTERED, "infrastructure_failure"),
        (None, State.DEAD_LETTERED, "infrastructure_failure"),
    ],
)
def test_a_command_that_was_stopped_ends_by_the_reason_whatever_its_code(
    reason: str | None, state: State, code: str, stopped: CommandStopped
) -> None:
    exit_code = None if stopped.exit is None else stopped.exit.code
    assert ended(reason, stopped) == (state, code, exit_code)


@pytest.mark.req("D7")
@pytest.mark.parametrize("stopped", [EXITED, KILLED])
def test_the_record_of_a_cancel_states_that_nothing_is_left(stopped: CommandStopped) -> None:
    life = end(CANCEL, stopped)
    assert life is not None
    assert life.events[-1].facts.kill == CONFIRMED


@pytest.mark.req("D9")
@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("reason", [None, CANCEL, TIMEOUT, DEADLINE, SHUTDOWN])
def test_trouble_after_the_start_ends_a_command_and_is_never_tried_again(
    reason: str | None, trouble: Exception
) -> None:
    life = end(reason, trouble)
    assert life is not None
    assert life.record.terminal
    assert life.record.exit_code is None
    assert life.events[-1].facts.link is None
    expected = {
        CANCEL: (State.CANCELLED, "cancelled"),
        TIMEOUT: (State.TIMED_OUT, "timeout"),
        DEADLINE: (State.TIMED_OUT, "deadline"),
    }.get(reason or "", (State.FAILED, getattr(trouble, "code", "handler_error")))
    assert (life.record.state, life.record.error_code) == expected


@pytest.mark.parametrize(
    ("trouble", "state", "code"),
    [
        (BoxRefused("no image"), State.DEAD_LETTERED, "dependency_unavailable"),
        (UploadExpired("gone"), State.DEAD_LETTERED, "upload_expired"),
        (UploadRefused("hostile"), State.DEAD_LETTERED, "validation_failed"),
        (ValidationError("no command"), State.DEAD_LETTERED, "validation_failed"),
        (RuntimeTrouble("hangs"), State.STALLED, None),
        (OSError(28, "No space left on device"), State.STALLED, None),
        (BoxLost("gone"), State.DEAD_LETTERED, "infrastructure_failure"),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, Exception) else "",
)
def test_trouble_before_the_start_ends_a_command_or_gives_it_back(
    trouble: Exception, state: State, code: str | None
) -> None:
    assert ended(None, trouble, started=False) == (state, code, None)


@pytest.mark.req("D9")
@pytest.mark.parametrize("trouble", [RuntimeTrouble("hangs"), OSError("disk")])
def test_what_the_host_gives_back_costs_nothing_and_waits_however_often(trouble: Exception) -> None:
    life = command(started=False, cancel=False)
    for times in range(1, 30):
        claimed = claimed_as(life.record, Created(), None, "c")
        release = end_after_stop(
            None, life.record, life.owner, trouble, claimed, lambda: 0.0, started=False
        )
        assert release is not None
        given_back = life.do(release).next
        assert (given_back.state, given_back.attempt) == (State.STALLED, times)
        assert (given_back.failures, given_back.releases) == (0, 0)
        assert life.record.run_at is not None
        assert life.record.run_at > life.record.updated_at
        life.claim()


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        (CANCEL, (State.CANCELLED, "cancelled", None)),
        (DEADLINE, (State.TIMED_OUT, "deadline", None)),
        (SHUTDOWN, (State.STALLED, None, None)),
    ],
)
def test_a_command_that_is_stopped_before_its_start_never_ran(reason: str, expected: End) -> None:
    assert ended(reason, CancelledError(), started=False) == expected


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("error", [FAILED, KILLED, NEVER_RAN, CancelledError(), *TROUBLES])
def test_nothing_is_written_for_a_command_whose_lease_was_lost(
    error: BaseException, started: bool
) -> None:
    assert ended(LEASE_LOST, error, started=started) is None


@pytest.mark.parametrize("started", [False, True])
@pytest.mark.parametrize("reason", REASONS)
def test_no_end_is_refused_by_the_law(reason: str | None, started: bool) -> None:
    """Whatever is raised: `Life.do` fails on a refusal."""
    before = (CancelledError(), *TROUBLES)
    after = (FAILED, OUT_OF_MEMORY, EXITED_ZERO, EXITED, KILLED, NEVER_RAN, *before)
    for error in after if started else before:
        life = end(reason, error, started=started)
        assert (life is None) is (reason == LEASE_LOST)
