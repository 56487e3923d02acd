"""The server as a part of another application, under a prefix."""

from __future__ import annotations

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from holdfast.http.router import Application


@pytest.mark.parametrize("root", ["/hold", "/a/b"])
async def test_a_server_answers_below_its_prefix(server: Application, root: str) -> None:
    outer = Starlette(routes=[Mount(root, server)])
    for transport in (httpx.ASGITransport(outer), httpx.ASGITransport(server, root_path=root)):
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            made = await http.post(f"{root}/v1/jobs", json={"task": "t"})
            assert made.status_code == 201, made.text
            read = await http.get(f"{root}/v1/jobs/{made.json()['job_id']}")
            assert read.status_code == 200
            assert (await http.get(f"{root}/nix")).status_code == 404
