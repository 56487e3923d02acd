"""What an examination finds: each with a severity, and how to fix it."""

from __future__ import annotations

import shutil
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

LEAST_BYTES = 100_000_000
LOW_BYTES = 1_000_000_000
LOW_SHARE = 0.05


class FindingSeverity(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    """It works, but not well, or not for long."""
    PROBLEM = "problem"
    """It does not work."""


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that was looked at."""

    check: str
    """What was looked at: database, migrations, clock, disk, workers, …"""
    verdict: FindingSeverity
    text: str
    mend: str | None = None
    """How to fix it; None where all is well. The name is that of the JSON field."""


def fine(check: str, text: str) -> Finding:
    """Report that all is well."""
    return Finding(check=check, verdict=FindingSeverity.OK, text=text)


def warning(check: str, text: str, fix: str) -> Finding:
    """Report what needs a look."""
    return Finding(check=check, verdict=FindingSeverity.WARNING, text=text, mend=fix)


def problem(check: str, text: str, fix: str) -> Finding:
    """Report what does not work."""
    return Finding(check=check, verdict=FindingSeverity.PROBLEM, text=text, mend=fix)


def judge_migrations(found: int | None, latest: int, needed: int) -> Finding:
    """Judge how far a schema is; `needed` is what versions must know to work beside newer ones."""
    if found == latest:
        return fine("migrations", f"the schema is at migration {found}, as this version needs")
    if found is None:
        return problem("migrations", "there is no Holdfast schema", "run `holdfast migrate`")
    if found > latest >= needed:
        text = f"the schema is at migration {found}; this version knows {latest} and can continue"
        return warning("migrations", text, "upgrade Holdfast here soon")
    text = f"the schema is at migration {found}, this version needs {latest}"
    fix = "run `holdfast migrate`" if found < latest else "upgrade Holdfast here"
    return problem("migrations", text, fix)


def judge_disk(check: str, directory: Path, fix: str) -> Finding:
    """Judge how much room there is on the disk of a directory."""
    usage = shutil.disk_usage(directory)
    text = f"{megabytes(usage.free)} of {megabytes(usage.total)} are free at {directory}"
    if usage.free < LEAST_BYTES:
        return problem(check, text, fix)
    if usage.free < min(LOW_BYTES, usage.total * LOW_SHARE):
        return warning(check, text, fix)
    return fine(check, text)


def megabytes(size: int) -> str:
    """Write a size."""
    return f"{size / 1_000_000_000:,.1f} GB" if size >= 10**9 else f"{size / 1_000_000:,.1f} MB"
