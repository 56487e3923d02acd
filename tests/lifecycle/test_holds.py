"""The names of holds."""

from __future__ import annotations

import pytest

from holdfast.lifecycle.holds import ApprovalHold, approval_holds, read_approval


@pytest.mark.req("A13")
def test_each_approval_that_is_needed_has_a_hold_of_its_own() -> None:
    holds = approval_holds("two-people", 2, 3600)

    assert holds == ("approval:two-people/2/3600", "approval:two-people/1/3600")
    assert [read_approval(hold) for hold in holds] == [
        ApprovalHold(rule="two-people", slot=slot, seconds=3600) for slot in (2, 1)
    ]


def test_a_rule_with_a_slash_in_its_id_is_read_whole() -> None:
    [hold] = approval_holds("prod/deploy", 1, 0)

    assert read_approval(hold) == ApprovalHold(rule="prod/deploy", slot=1, seconds=0)


@pytest.mark.parametrize(
    "hold",
    ["", "upload:1", "approval:", "approval:two", "approval:two/1", "approval:/1/0",
     "approval:two/x/0", "approval:two/1/-1", "approval:two/1/²", "approval:two/1/" + "9" * 10],
)  # fmt: skip
def test_any_other_hold_is_not_an_approval(hold: str) -> None:
    assert read_approval(hold) is None
