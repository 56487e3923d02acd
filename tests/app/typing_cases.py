"""What a type checker sees of tasks; `test_typing.py` runs it over this file, nobody runs the file.

A line that must be an error says so: where it were none, the checker would call the comment unused.
"""

from __future__ import annotations

from typing import Any, assert_type

from holdfast import Client, Context, Holdfast, JobHandle, PendingHandle

app = Holdfast()


@app.task
async def thumbnail(ctx: Context, image: str, width: int = 100) -> bytes:
    """With a context, as a coroutine."""
    return image.encode() * width


@app.task(retries=5, timeout="5m")
def resize(ctx: Context, image: str) -> int:
    """With a context, as a function, with options."""
    return len(image)


@app.task
async def fetch(url: str) -> str:
    """Without a context, as a coroutine."""
    return url


@app.task()
def add(a: int, b: int) -> int:
    """Without a context, as a function."""
    return a + b


@app.task
def keep(payload: Any, note: object = None) -> None:
    """A first parameter that may be anything is no context."""


@app.task
def tick() -> None:
    """Without anything."""


async def right() -> None:
    """What must pass."""
    assert_type(await thumbnail.submit("cat.png"), JobHandle[bytes])
    assert_type(await thumbnail.submit("cat.png", width=3), JobHandle[bytes])
    assert_type(await (await resize.submit("cat.png")).result(5), int)
    assert_type(await (await fetch.submit(url="https://…")).result(), str)
    assert_type(await add.options(delay="5m", labels={"a": "b"}).submit(1, 2), JobHandle[int])
    assert_type(
        await add.submit_many([(1, 2), {"a": 1, "b": 2}, add.prepare(1, 2)]), list[JobHandle[int]]
    )
    assert_type(add.submit_sync(1, b=2).result_sync(), int)
    client = Client("http://localhost:8000")
    assert_type(await client.submit(resize, "cat.png"), JobHandle[int])
    assert_type(client.submit_sync(add.options(delay="5m"), 1, b=2).result_sync(), int)
    assert_type(await client.submit("resize", image="cat.png"), JobHandle[Any])
    assert_type(await fetch.submit_in(object(), "https://…"), PendingHandle[str])
    assert_type(add.options(delay="5m").submit_in_sync(object(), 1, b=2).result_sync(), int)
    await (await keep.submit({"a": 1})).wait("10s")
    await (await tick.submit()).cancel(hard=True, reason="enough")


async def wrong() -> None:
    """What must not."""
    await thumbnail.submit(3)  # type: ignore[arg-type]
    await thumbnail.submit("cat.png", depth=3)  # type: ignore[call-arg]
    await thumbnail.submit()  # type: ignore[call-arg]
    await resize.submit(image=b"cat")  # type: ignore[arg-type]
    await fetch.submit("https://…", 3)  # type: ignore[call-arg]
    await add.options(delay="5m").submit("1", 2)  # type: ignore[arg-type]
    add.submit_sync(1)  # type: ignore[call-arg]
    add.prepare(1, "2")  # type: ignore[arg-type]
    await fetch.submit_in(object(), 3)  # type: ignore[arg-type]
    add.submit_in_sync(object(), 1)  # type: ignore[call-arg]
    await tick.submit(1)  # type: ignore[call-arg]
    length: str = await (await resize.submit("cat.png")).result()  # type: ignore[assignment]
    text: int = fetch.submit_sync("https://…").result_sync()  # type: ignore[assignment]
    add.options(dellay="5m")  # type: ignore[call-arg]
    app.task(retrys=3)  # type: ignore[call-overload]
    app.task(timeout=[5])  # type: ignore[call-overload]
    print(length, text)
