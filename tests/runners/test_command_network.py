"""A job that the rules allow no network does not start where it would get one."""

from __future__ import annotations

import pytest

from holdfast.errors import ValidationError
from holdfast.lifecycle.command_spec import CommandSpec
from holdfast.runners.command.box_of import check_network
from holdfast.runners.command.profiles import AgentProfile

NONE = CommandSpec(type="worker", command="ls", network="none")
ANY = CommandSpec(type="worker", command="ls")
HOST = AgentProfile(argv=("agent",), network="host")
CLOSED = AgentProfile(argv=("agent",))


@pytest.mark.req("A13")
@pytest.mark.parametrize(("profile", "isolated"), [(HOST, True), (None, False), (CLOSED, False)])
def test_it_is_refused_where_it_would_get_a_network(
    profile: AgentProfile | None, isolated: bool
) -> None:
    with pytest.raises(ValidationError, match="network: the rules allow it none"):
        check_network(NONE, profile, isolated=isolated)
    check_network(ANY, profile, isolated=isolated)


@pytest.mark.parametrize("profile", [None, CLOSED])
def test_it_runs_in_a_box_without_a_network(profile: AgentProfile | None) -> None:
    check_network(NONE, profile, isolated=True)
