"""An app that redacts, for tests whose handlers run in processes of their own."""

from __future__ import annotations

from holdfast import Context, Holdfast

SECRET = "hunter2"
app = Holdfast(":memory:", unbounded_leases=True)


@app.redact
def mask(text: str) -> str:
    """Hide the one secret there is."""
    return text.replace(SECRET, "***")


@app.task(retries=0, isolate="process")
def charge_apart(ctx: Context) -> None:
    """Say and raise a secret, elsewhere."""
    ctx.log.info("with %s", SECRET)
    raise ValueError(f"password {SECRET} is wrong")
