"""The `holdfast` command itself; each of its commands is tested beside what it does."""

import pytest
from typer.testing import CliRunner

from holdfast import __version__
from holdfast.cli.main import app
from holdfast.cli.runtime import BAD_INPUT, FOUND_PROBLEMS, exit_code
from holdfast.errors import AddressBlocked, CannotServe, HoldfastError, NoSuchTask, NoTokens


def test_the_version_is_printed() -> None:
    outcome = CliRunner().invoke(app, ["--version"])

    assert outcome.exit_code == 0
    assert outcome.stdout == f"holdfast {__version__}\n"


def test_without_a_command_the_help_is_shown() -> None:
    outcome = CliRunner().invoke(app, [])

    assert "Usage: holdfast" in outcome.output


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (AddressBlocked("x"), BAD_INPUT),
        (NoSuchTask("x"), BAD_INPUT),
        (CannotServe("x"), FOUND_PROBLEMS),
        (NoTokens("x"), FOUND_PROBLEMS),
    ],
)
def test_what_was_asked_wrongly_ends_otherwise_than_what_cannot_be_done(
    error: HoldfastError, code: int
) -> None:
    assert exit_code(error) == code
