"""`holdfast token`: what each client may ask of a server. Create, list, revoke."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from typer import Argument, Option

from holdfast.auth.tokens import TokenList, TokenRole, TokenView, WantedToken
from holdfast.cli.options import Before, Limit, ServerCommand, read_date, words
from holdfast.cli.output import align_table, facts, plain, short, time_text
from holdfast.durations import micros, span_seconds
from holdfast.operations.requests import CreateToken, ListTokens, RevokeToken

TITLES = ("ID", "NAME", "ROLE", "TENANT", "QUEUES", "CREATED", "BY", "EXPIRES", "REVOKED")


def create_token(
    command: ServerCommand,
    name: Annotated[str, Argument(metavar="NAME", help="Who will use it.")],
    *,
    role: Annotated[TokenRole, Option(help="What it allows.")],
    tenant: Annotated[str | None, Option(help="Only for jobs of this tenant.")] = None,
    queues: Annotated[str | None, Option(help="Only for these queues: a,b.")] = None,
    expires: Annotated[
        str | None, Option(help="When it expires: 30d, 12h, or 2027-01-31T10:00 (UTC).")
    ] = None,
) -> None:
    """Create a token. It is printed this once, and stored nowhere."""
    wanted = WantedToken(
        name=name,
        role=role,
        tenant=tenant,
        queues=None if queues is None else list(words(queues)),
        **_read_expiry(expires),
    )
    made = command.do(CreateToken(token=wanted))
    titles = (title.lower() for title in TITLES)
    about = facts(zip(titles, _token_row(made.about), strict=True))
    how = "It is not shown again. Send it as `Authorization: Bearer …`, or in HOLDFAST_TOKEN."
    # The token alone on stdout, so that a script can take it.
    command.show({"token": made.token, "about": made.about}, made.token, notes=[*about, how])


def list_tokens(
    command: ServerCommand,
    everyone: Annotated[bool, Option("--all", help="Also revoked tokens.")] = False,
    limit: Limit = 100,
    before: Before = None,
) -> None:
    """List tokens, newest first, without their secrets, which are stored nowhere."""
    page = command.do(ListTokens(before=before, limit=limit))
    shown = [one for one in page.tokens if everyone or one.revoked_at is None]
    lines = align_table(TITLES, map(_token_row, shown)) if shown else ["no tokens"]
    notes = [] if page.next is None else [f"more: --before {page.next}"]
    command.show(TokenList(tokens=shown, next=page.next), *lines, notes=notes)


def revoke_token(
    command: ServerCommand,
    id: Annotated[str, Argument(metavar="ID", help="The id, as `holdfast token ls` shows it.")],
) -> None:
    """Revoke a token for ever; running servers notice within two seconds."""
    revoked = command.do(RevokeToken(token=id))
    command.show(revoked, f"token {plain(revoked.id)} ({plain(revoked.name)}) is revoked")


def _read_expiry(text: str | None) -> dict[str, Any]:
    """Read when a token expires: after a span, or at a time."""
    if text is None:
        return {}
    try:
        span_seconds(text)
        return {"expires": text}
    except ValueError:
        return {"expires_at": read_date(text, "--expires", example="30d, 12h or 2027-01-31T10:00")}


def _token_row(token: TokenView) -> list[str]:
    return [
        plain(token.id),
        short(token.name, 30),
        plain(token.role),
        short(token.tenant, 30) or "all",
        "all" if token.queues is None else short(",".join(token.queues)),
        _time(token.created_at),
        short(token.created_by, 40),
        _time(token.expires_at),
        _time(token.revoked_at),
    ]


def _time(moment: datetime | None) -> str:
    return time_text(None if moment is None else micros(moment))
