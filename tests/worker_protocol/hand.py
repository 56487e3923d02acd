"""A worker by hand: it says what a test wants said, and nothing by itself."""

from __future__ import annotations

from itertools import count
from typing import Any

import httpx

Json = dict[str, Any]
_numbers = count(1)


class Hand:
    """One session of a worker."""

    def __init__(self, http: httpx.AsyncClient, session: str) -> None:
        """Take the session."""
        self.http = http
        self.session = session

    @classmethod
    async def hired(cls, http: httpx.AsyncClient, **wishes: Any) -> Hand:
        """Open a session."""
        reply = await http.post("/v1/worker/sessions", json=wishes)
        assert reply.status_code == 201, reply.text
        return cls(http, reply.json()["session"])

    async def ask(self, path: str, **said: Any) -> Json:
        """Say something that must be taken."""
        reply = await self.http.post(f"/v1/worker/{path}", json={"session": self.session, **said})
        assert reply.status_code == 200, reply.text
        told: Json = reply.json()
        return told

    async def claim(self, **wishes: Any) -> list[Json]:
        """Claim, under a request of its own if none is named."""
        wishes = {"request_id": f"claim-{next(_numbers)}"} | wishes
        jobs: list[Json] = (await self.ask("claim", **wishes))["jobs"]
        return jobs

    async def claim_one(self, **wishes: Any) -> Json:
        """Claim the one job that must be there."""
        [job] = await self.claim(**wishes)
        return job

    async def report(self, *reports: Json) -> list[Json]:
        """Say many things at once."""
        answers: list[Json] = (await self.ask("report", reports=list(reports)))["reports"]
        return answers

    async def say(self, job: Json, word: str, **more: Any) -> Json:
        """Say one thing of a job."""
        [answer] = await self.report(said(job, word, **more))
        return answer

    async def started(self, **wishes: Any) -> Json:
        """Claim and start the one job that must be there."""
        job = await self.claim_one(**wishes)
        assert (await self.say(job, "start"))["accepted"]
        return job


def said(job: Json, word: str, **more: Any) -> Json:
    """A report on a job that was claimed."""
    return {"say": word, "internal_id": job["internal_id"], "attempt": job["attempt"], **more}


async def submitted(http: httpx.AsyncClient, **wanted: Any) -> Json:
    """Submit one job, and give it as it is told."""
    reply = await http.post("/v1/jobs", json={"task": "charge", **wanted})
    assert reply.status_code == 201, reply.text
    job: Json = reply.json()["job"]
    return job


async def read(http: httpx.AsyncClient, job: Json) -> Json:
    """Read a job that was claimed or submitted."""
    reply = await http.get(f"/v1/jobs/{job['internal_id']}")
    assert reply.status_code == 200, reply.text
    told: Json = reply.json()
    return told


async def events(http: httpx.AsyncClient, job: Json) -> list[str]:
    """List the types of a job's events."""
    reply = await http.get(f"/v1/jobs/{job['internal_id']}/history")
    return [event["type"] for event in reply.json()["events"]]
