"""`holdfast token`: who may ask a server for what. Make, list, revoke.

Exit codes: 0 done, 1 no such token, 2 bad input, 3 the store failed, 4 refused.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from holdfast.cli.running import DEFAULT_URL, AsJson, Url, err, out, print_json, run, with_tokens
from holdfast.cli.settings import words
from holdfast.cli.showing import instant, plain, say, say_facts, say_table, short
from holdfast.errors import BadData
from holdfast.json_format import json_of
from holdfast.spans import span_seconds
from holdfast.tokens import MadeToken, TokenOperations, TokenRole, TokenView, WantedToken
from holdfast.views import micros

TITLES = ("ID", "NAME", "ROLE", "TENANT", "QUEUES", "CREATED", "BY", "EXPIRES", "REVOKED")

token_app = typer.Typer(help="Tokens: who may ask a server for what.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Who will use it.")]
Role = Annotated[TokenRole, typer.Option("--role", help="What it is for.")]
Tenant = Annotated[
    str | None, typer.Option("--tenant", help="Whose jobs it is for; left out, everybody's.")
]
Queues = Annotated[
    str | None, typer.Option("--queues", help="Which queues it is for: a,b; left out, all.")
]
Expires = Annotated[
    str | None,
    typer.Option("--expires", help="When it ends: 30d, 12h, or 2027-01-31T10:00 (UTC)."),
]
Id = Annotated[str, typer.Argument(metavar="ID", help="The id, as `holdfast token ls` shows it.")]
All = Annotated[bool, typer.Option("--all", help="Also those that were revoked.")]
Limit = Annotated[int, typer.Option("--limit", min=1, max=1000, help="How many at most.")]
Before = Annotated[
    str | None, typer.Option("--before", help="Go on after a page: the id that it ended with.")
]


def register(app: typer.Typer) -> None:
    """Add these commands."""
    app.add_typer(token_app, name="token")


@token_app.command("create")
def create_token(
    name: Name,
    *,
    role: Role,
    tenant: Tenant = None,
    queues: Queues = None,
    expires: Expires = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """Make a token. What it prints is shown this once, and kept nowhere."""

    async def work(tokens: TokenOperations) -> MadeToken:
        return await tokens.create(
            WantedToken(
                name=name,
                role=role,
                tenant=tenant,
                queues=None if queues is None else list(words(queues)),
                **_end(expires),
            )
        )

    made = run(with_tokens(url, work))
    if as_json:
        print_json({"token": made.token, "about": json_of(made.about)})
        return
    # The token alone on stdout, so that a script can take it.
    say(out, made.token)
    say_facts(err, _facts(made.about))
    say(err, "It is not shown again. Send it as `Authorization: Bearer …`, or in HOLDFAST_TOKEN.")


@token_app.command("ls")
def list_tokens(
    everyone: All = False,
    limit: Limit = 100,
    before: Before = None,
    url: Url = DEFAULT_URL,
    as_json: AsJson = False,
) -> None:
    """List tokens, newest first; never their secrets, which nobody keeps."""

    async def work(tokens: TokenOperations) -> list[TokenView]:
        return await tokens.tokens(before=before, limit=limit)

    found = run(with_tokens(url, work))
    shown = [one for one in found if everyone or one.revoked_at is None]
    following = found[-1].id if len(found) == limit else None
    if as_json:
        print_json({"tokens": [json_of(one) for one in shown], "next": following})
        return
    if shown:
        say_table(out, TITLES, [_row(one) for one in shown])
    else:
        say(out, "no tokens")
    if following is not None:
        say(err, f"there may be more: --before {following}")


@token_app.command("revoke")
def revoke_token(id: Id, url: Url = DEFAULT_URL, as_json: AsJson = False) -> None:
    """End a token for ever; servers that run notice within two seconds."""

    async def work(tokens: TokenOperations) -> TokenView:
        return await tokens.revoke(id)

    revoked = run(with_tokens(url, work))
    if as_json:
        print_json(json_of(revoked))
    else:
        say(out, f"token {plain(revoked.id)} ({plain(revoked.name)}) is revoked")


def _end(text: str | None) -> dict[str, Any]:
    """Read when a token ends: after a span, or at a time."""
    if text is None:
        return {}
    try:
        span_seconds(text)
        return {"expires": text}
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        hint = "say 30d, 12h or 2027-01-31T10:00"
        raise BadData(f"--expires must be a span or a time, not {text!r}: {hint}") from error
    return {"expires_at": moment if moment.tzinfo else moment.replace(tzinfo=UTC)}


def _row(token: TokenView) -> list[str]:
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


def _facts(token: TokenView) -> list[tuple[str, str]]:
    return list(zip((title.lower() for title in TITLES), _row(token), strict=True))


def _time(moment: datetime | None) -> str:
    return instant(None if moment is None else micros(moment))
