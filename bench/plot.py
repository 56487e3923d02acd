"""Draw the results as bars: `python plot.py bench.json performance.png`.

Runs in the bench's own environment, which has matplotlib and nothing of the project.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import median
from typing import Any

OURS, OTHERS = "#1f6f5c", "#9aa5ad"


def bars(results: dict[str, Any], scenario: str, variant: str, name: str) -> dict[str, list[float]]:
    """Collect one value by contestant."""
    found: dict[str, list[float]] = {}
    for one in results["measurements"]:
        if (one["scenario"], one["variant"]) == (scenario, variant) and name in one["values"]:
            found.setdefault(one["contender"], []).append(one["values"][name])
    return found


def panels(results: dict[str, Any]) -> list[tuple[str, str, str, str]]:
    """Choose what is drawn: title, scenario, condition, value."""
    chosen = []
    for scenario, name, unit in (("drain", "rate", "/s"), ("submit", "rate", "/s")):
        kept = [one["variant"] for one in results["measurements"] if one["scenario"] == scenario]
        for variant in dict.fromkeys(kept):
            if "processes" not in variant:
                chosen.append((f"{scenario}{unit}, {variant}", scenario, variant, name))
    chosen.append(("idle latency p50, ms (less is better)", "latency", "idle", "p50"))
    chosen.append(("idle latency p99, ms (less is better)", "latency", "idle", "p99"))
    return [panel for panel in chosen if bars(results, *panel[1:])]


def draw(results: dict[str, Any], target: Path) -> None:
    """Draw one panel each, bars with the range of the rounds."""
    import matplotlib  # type: ignore[import-not-found]

    matplotlib.use("Agg")
    from matplotlib import pyplot

    chosen = panels(results)
    lines = (len(chosen) + 1) // 2
    figure, axes = pyplot.subplots(lines, 2, figsize=(13, 3.2 * lines), squeeze=False)
    for axis, panel in zip(axes.flat, chosen, strict=False):
        _panel(axis, panel[0], bars(results, *panel[1:]))
    for axis in axes.flat[len(chosen) :]:
        axis.set_visible(False)
    figure.suptitle("Medians; the lines are the range of the rounds")
    figure.tight_layout()
    figure.savefig(target, dpi=110)


def _panel(axis: Any, title: str, found: dict[str, list[float]]) -> None:
    names = sorted(found, key=lambda name: median(found[name]))
    middles = [median(found[name]) for name in names]
    low = [middle - min(found[name]) for name, middle in zip(names, middles, strict=True)]
    high = [max(found[name]) - middle for name, middle in zip(names, middles, strict=True)]
    colours = [OURS if name.startswith(("holdfast", "store")) else OTHERS for name in names]
    # From zero and not logarithmic: else the length of a bar would mean nothing.
    drawn = axis.barh(names, middles, xerr=[low, high], color=colours, error_kw={"linewidth": 0.8})
    axis.bar_label(drawn, [_number(middle) for middle in middles], padding=4, fontsize=8)
    axis.margins(x=0.15)
    axis.set_title(title, fontsize=10)
    axis.tick_params(labelsize=8)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


if __name__ == "__main__":
    draw(json.loads(Path(sys.argv[1]).read_text("utf-8")), Path(sys.argv[2]))
