"""`make chaos SECONDS=300 SEED=7`: battles on both stores in turn; exits 1 if one is lost."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from pathlib import Path

from tests.chaos.battle import battle


def main() -> int:
    """Fight on each store for half of the time."""
    parser = argparse.ArgumentParser(prog="make chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for both stores together")
    parser.add_argument("--seed", type=int, default=None, help="chooses faults and jobs")
    parser.add_argument("--store", choices=("sqlite", "postgres", "both"), default="both")
    wish = parser.parse_args()
    seed = int.from_bytes(os.urandom(3), "big") if wish.seed is None else wish.seed
    engines = ("sqlite", "postgres") if wish.store == "both" else (wish.store,)
    print(f"seed {seed}", flush=True)
    return max([_fight(engine, wish.seconds / len(engines), seed) for engine in engines])


def _fight(engine: str, seconds: float, seed: int) -> int:
    with tempfile.TemporaryDirectory(prefix="holdfast-chaos-") as directory:
        verdict = asyncio.run(battle(engine, seconds, seed, Path(directory), _say))
    print(f"\n{engine}, seed {seed}: {verdict.jobs} jobs, {verdict.effects} outside effects tried,")
    print(f"{verdict.refused_effects} of them refused\n{verdict.table}\n")
    for problem in verdict.problems:
        print(f"PROBLEM {problem}")
    print(f"{engine}: {'lost' if verdict.problems else 'all promises kept'}\n", flush=True)
    return bool(verdict.problems)


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
