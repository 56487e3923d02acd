"""`python -m holdfast.cli` is the `holdfast` command."""

from holdfast.cli.main import run_command_line

run_command_line()
