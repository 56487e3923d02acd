"""The app of the soak: one task that does nothing, run by `holdfast worker` in its own process."""

from __future__ import annotations

from holdfast.app.app import Holdfast

app = Holdfast()


@app.task
async def touch(number: int) -> None:
    """Do nothing."""
