"""An app whose jobs clients ask for."""

from __future__ import annotations

from holdfast import Holdfast

app = Holdfast(":memory:")


@app.task(queue="sums", retries=7)
async def add(a: int, b: int = 1) -> int:
    """Add."""
    return a + b


@app.task(retries=0)
async def break_down(word: str) -> None:
    """Fail."""
    raise ValueError(word)


@app.task(idempotent=False, retries=2, backoff=0)
async def third_time(marks: str) -> str:
    """Succeed at the third try, by a new job for each."""
    with open(marks, "a+") as file:  # noqa: ASYNC230  a few bytes
        file.write("x")
        file.seek(0)
        if len(file.read()) < 3:
            raise ValueError("not yet")
    return "done"
