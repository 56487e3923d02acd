"""What an examination finds: each with a verdict, and how to mend it."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct


class Verdict(StrEnum):
    """How bad it is."""

    OK = "ok"
    WARNING = "warning"
    """It works, and will not for long, or not well."""
    PROBLEM = "problem"
    """It does not work."""


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that was looked at."""

    check: str
    """What was looked at: database, migrations, clock, disk, workers, …"""
    verdict: Verdict
    text: str
    mend: str | None = None
    """What to do; none where all is well."""


def fine(check: str, text: str) -> Finding:
    """Say that all is well."""
    return Finding(check=check, verdict=Verdict.OK, text=text)


def warning(check: str, text: str, mend: str) -> Finding:
    """Say that something wants a look."""
    return Finding(check=check, verdict=Verdict.WARNING, text=text, mend=mend)


def problem(check: str, text: str, mend: str) -> Finding:
    """Say that something does not work."""
    return Finding(check=check, verdict=Verdict.PROBLEM, text=text, mend=mend)


def judge_migrations(found: int | None, latest: int, needed: int) -> Finding:
    """Judge how far a schema is; `needed` is what versions must know to work beside newer ones."""
    if found == latest:
        return fine("migrations", f"the schema is at migration {found}, as this version needs")
    if found is None:
        return problem("migrations", "there is no Holdfast schema", "run `holdfast migrate`")
    if found > latest >= needed:
        text = f"the schema is at migration {found}; this version knows {latest} and may go on"
        return warning("migrations", text, "upgrade Holdfast here soon")
    text = f"the schema is at migration {found}, this version needs {latest}"
    mend = "run `holdfast migrate`" if found < latest else "upgrade Holdfast here"
    return problem("migrations", text, mend)


def megabytes(size: int) -> str:
    """Tell a size."""
    return f"{size / 1_000_000_000:,.1f} GB" if size >= 10**9 else f"{size / 1_000_000:,.1f} MB"
