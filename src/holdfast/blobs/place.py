"""The address of a place of blobs: a directory, or a bucket of an S3-compatible service.

Credentials are never part of an address: they come from the environment, as for other programs.
"""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import TypeAlias
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from msgspec import Struct

from holdfast.errors import BadAddress

FORMS = "a directory, file:///directory or s3://bucket/prefix?endpoint=…&region=…&allow_http=true"
CREDENTIALS = "credentials come from the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, …)"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX = re.compile(r"([A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*)?")
_PARAMETERS = ("endpoint", "region", "allow_http")
_YES_OR_NO = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class DirectoryPlace(Struct, frozen=True):
    """A directory of this host, or one that hosts share."""

    directory: Path

    @property
    def address(self) -> str:
        """Return where it is, also for a reader on another host."""
        return f"file://{socket.gethostname()}{quote(str(self.directory))}"


class BucketPlace(Struct, frozen=True, kw_only=True):
    """A bucket, or what is below a prefix in it. What is None comes from the environment."""

    bucket: str
    prefix: str = ""
    endpoint: str | None = None
    region: str | None = None
    allow_http: bool = False

    @property
    def address(self) -> str:
        """Return where it is, as it can be given again."""
        given = {"endpoint": self.endpoint, "region": self.region}
        query = {name: value for name, value in given.items() if value is not None}
        if self.allow_http:
            query["allow_http"] = "true"
        return f"s3://{self.bucket}/{self.prefix}" + (
            f"?{urlencode(query, safe=':/')}" if query else ""
        )


BlobPlace: TypeAlias = DirectoryPlace | BucketPlace


def read_place(text: str) -> BlobPlace:
    """Read what a user writes. Does not look whether anything is there."""
    try:
        parts = urlsplit(text)
    except ValueError as error:
        # Not the text itself: what cannot be read may be a secret at any place.
        raise BadAddress(f"invalid place of blobs: {error}; use {FORMS}") from None
    if parts.scheme == "s3":
        return _bucket_place(parts)
    if parts.scheme == "file":
        return _directory_place(parts)
    if "://" in text or not text:
        raise _bad(parts, f"use {FORMS}")
    return DirectoryPlace(Path(text).absolute())


def _directory_place(parts: SplitResult) -> DirectoryPlace:
    if parts.netloc not in ("", "localhost"):
        raise _bad(parts, "a directory of another host cannot be reached; use file:///directory")
    directory = Path(unquote(parts.path))
    if not directory.is_absolute() or parts.query or parts.fragment:
        raise _bad(parts, "use file:///directory")
    return DirectoryPlace(directory)


def _bucket_place(parts: SplitResult) -> BucketPlace:
    if "@" in parts.netloc:
        raise _bad(parts, CREDENTIALS)
    if not _BUCKET.fullmatch(parts.netloc):
        raise _bad(parts, "a bucket has 3 to 63 characters of a-z, 0-9, '.' and '-'")
    prefix = parts.path.strip("/")
    if not _PREFIX.fullmatch(prefix) or {".", ".."} & set(prefix.split("/")):
        raise _bad(parts, "a prefix is words of letters, digits, '.', '_' and '-', joined by '/'")
    given = _parameters(parts)
    allow_http = _YES_OR_NO.get(given.get("allow_http", "false").lower())
    if allow_http is None:
        raise _bad(parts, "allow_http must be true or false")
    return BucketPlace(
        bucket=parts.netloc,
        prefix=prefix,
        endpoint=_endpoint(parts, given.get("endpoint"), allow_http=allow_http),
        region=given.get("region"),
        allow_http=allow_http,
    )


def _parameters(parts: SplitResult) -> dict[str, str]:
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name, value in given.items():
        if name not in _PARAMETERS:
            known = ", ".join(_PARAMETERS)
            raise _bad(parts, f"unknown parameter {name!r}; there are {known}, and {CREDENTIALS}")
        if not value:
            raise _bad(parts, f"{name} has no value")
    return given


def _endpoint(parts: SplitResult, given: str | None, *, allow_http: bool) -> str | None:
    if given is None:
        return None
    try:
        server = urlsplit(given)
        is_complete = bool(server.hostname) and server.port != 0
    except ValueError:
        raise _bad(parts, "endpoint must be https://host:port") from None
    if server.scheme not in ("http", "https") or not is_complete:
        raise _bad(parts, "endpoint must be https://host:port")
    if "@" in server.netloc or server.query:
        raise _bad(parts, CREDENTIALS)
    if server.scheme == "http" and not allow_http:
        raise _bad(parts, "its endpoint is not encrypted; add allow_http=true if that is meant")
    return given.rstrip("/")


def _bad(parts: SplitResult, reason: str) -> BadAddress:
    """Name an address, without the parts of it in which a user may have written a secret."""
    shown = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="")
    return BadAddress(f"invalid place of blobs {urlunsplit(shown)!r}: {reason}")
