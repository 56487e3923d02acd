"""The `holdfast` command itself; each of its commands is tested beside what it does."""

from typer.testing import CliRunner

from holdfast import __version__
from holdfast.cli.main import app


def test_the_version_is_printed() -> None:
    outcome = CliRunner().invoke(app, ["--version"])

    assert outcome.exit_code == 0
    assert outcome.stdout == f"holdfast {__version__}\n"


def test_without_a_command_the_help_is_shown() -> None:
    outcome = CliRunner().invoke(app, [])

    assert "Usage: holdfast" in outcome.output
