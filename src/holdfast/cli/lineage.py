"""How `holdfast show --tree` draws the tree that a job stands in."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.cli.running import out
from holdfast.cli.showing import plain, say
from holdfast.flow.lineage import Lineage, Node


def say_lineage(shown: Lineage) -> None:
    """Draw the line above a job and the tree below it; the job itself is marked."""
    for depth, node in enumerate(shown.above):
        say(out, f"{'   ' * depth}{_told(node)}")
    margin = "   " * len(shown.above)
    say(out, f"{margin}{_told(shown.tree)}{'  <' if shown.above else ''}")
    for line in _below(shown.tree):
        say(out, margin + line)


def _below(node: Node) -> Iterator[str]:
    last = len(node.below) - 1
    for number, child in enumerate(node.below):
        ends = number == last and not node.left_out
        yield f"{'└─ ' if ends else '├─ '}{_told(child)}"
        for line in _below(child):
            yield ("   " if ends else "│  ") + line
    if node.left_out:
        yield "└─ … and more"


def _told(node: Node) -> str:
    number = "" if node.step_index is None else f" {node.step_index}"
    link = "" if node.link is None else f"{node.link}{number}: "
    error = "" if node.error_code is None else f" ({plain(node.error_code)})"
    return f"{link}{plain(node.job_id)}  {plain(node.task)}  {node.state}{error}"
