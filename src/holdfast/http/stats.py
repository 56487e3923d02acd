"""How much there is of everything, at a glance: from the summaries, never by counting."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

from fastapi import APIRouter
from starlette.responses import Response

from holdfast import __version__
from holdfast.http.asking import Ask, asking
from holdfast.http.bodies import answer
from holdfast.http.documents import documented
from holdfast.http.scopes import Scope
from holdfast.lifecycle.states import State
from holdfast.messages import Crew, Stats
from holdfast.operations import Roll
from holdfast.views import instant

router = APIRouter(prefix="/v1", tags=["stats"])


@router.get("/stats", **documented(_200=Stats))
async def get_stats(ask: Annotated[Ask, asking(Scope.READ)]) -> Response:
    """Count jobs by state, queues and workers."""
    depths = await ask.jobs.queues()
    roll = await ask.jobs.workers()
    jobs: Counter[State] = Counter()
    for depth in depths:
        jobs.update(depth.jobs)
    stats = Stats(
        version=__version__,
        now=instant(roll.now),
        total=jobs.total(),
        jobs=dict(jobs),
        queues=len(depths),
        paused=[depth.queue for depth in depths if depth.paused_at is not None],
        workers=_crew(roll),
    )
    return answer(stats)


def _crew(roll: Roll) -> Crew:
    live = [one for one in roll.workers if one.is_live(roll.now)]
    ended = sum(one.stopped_at is not None for one in roll.workers)
    return Crew(
        live=len(live),
        silent=len(roll.workers) - len(live) - ended,
        ended=ended,
        slots=sum(one.concurrency for one in live),
    )
