"""The page about the API: complete, and nothing of it is loaded from elsewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import httpx
import pytest


class Page(HTMLParser):
    """Reads links and tags, and checks that every tag is closed."""

    VOID = ("meta", "link", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.tags: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what it loads and where it leads."""
        given = dict(attrs)
        self.tags.add(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "link":
            self.loads.append(given["href"] or "")
        if tag == "a":
            self.links.add(given["href"] or "")
        if given.get("id"):
            self.anchors.add(f"#{given['id']}")

    def handle_endtag(self, tag: str) -> None:
        """Close what was opened last."""
        assert self.open.pop() == tag


async def test_the_page_has_every_route_and_schema(http: httpx.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()
    reply = await http.get("/docs")
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    for path in document["paths"]:
        assert f"<code>{path}</code>" in reply.text
    page = Page(reply.text)
    assert page.open == []
    schemas = {re.sub("[^A-Za-z0-9]", "-", name) for name in document["components"]["schemas"]}
    assert {f"#schema-{name}" for name in schemas} <= page.anchors
    inner = {link for link in page.links if link.startswith("#")}
    assert inner <= page.anchors


async def test_the_document_has_a_head(http: httpx.AsyncClient) -> None:
    reply = await http.head("/openapi.json")
    assert (reply.status_code, reply.headers["content-type"]) == (200, "application/json")
    assert (await http.post("/openapi.json")).headers["allow"] == "GET, HEAD"


async def test_the_page_loads_nothing_but_its_own_stylesheet(http: httpx.AsyncClient) -> None:
    reply = await http.get("/docs")
    page = Page(reply.text)
    assert page.loads == ["docs/style.css"]
    assert page.links - {link for link in page.links if link.startswith("#")} == {"openapi.json"}
    assert page.tags.isdisjoint({"script", "img", "iframe", "object", "form"})
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    assert "://" not in reply.text
    style = await http.get("/docs/style.css")
    assert style.headers["content-type"].startswith("text/css")
    assert "url(" not in style.text
    assert "@import" not in style.text


async def test_the_page_needs_no_token_and_tells_nothing_of_jobs(http: httpx.AsyncClient) -> None:
    await http.post("/v1/jobs", json={"task": "secret-task"})
    reply = await http.get("/docs", headers={"authorization": "Bearer nobody"})
    assert reply.status_code == 200
    assert "secret-task" not in reply.text


async def test_the_page_is_made_once(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await http.get("/docs")
    monkeypatch.setattr("holdfast.http.reference.openapi", pytest.fail)
    assert (await http.get("/docs")).text == first.text
