"""The part of the demo about the policy: one job is denied, another one is approved."""

from __future__ import annotations

from pathlib import Path

from examples.demo import shop
from examples.demo.display import LIMIT_SECONDS, Display
from holdfast import Holdfast
from holdfast.lifecycle.states import State

POLICY = """\
version = 1
default = "allow"

[[rule]]
id = "no-free-lamps"
match = { task = "give_away" }
then = "deny"
reason = "the shop gives nothing away"

[[rule]]
id = "large-refunds"
match = { task = "refund", labels = { size = "large" } }
then = "approve"
reason = "another person looks at large refunds"
"""


async def run(display: Display, place: Path) -> None:
    """Apply a policy; see a job denied, and another one approved; remove the policy."""
    display.chapter("6. A policy: one job is denied, another one is approved")
    file = place / "policy.toml"
    file.write_text(POLICY)
    await display.command("policy", "apply", str(file))
    gift = await shop.give_away.options(job_id="gift").submit("lamp")
    await display.command("policy", "explain", "gift")
    display.check(gift.state is State.DENIED, "denied: no worker ever sees it")
    refund = await shop.refund.options(job_id="refund-7", labels={"size": "large"}).submit(7)
    await display.command("approvals")
    display.check(refund.state is State.PENDING, "the refund awaits another person than its own")
    # The app submitted it as `demo`; a person on the command line is known by the user's name.
    clerk = Holdfast(shop.app.url, name="clerk")
    async with clerk:
        await (await clerk.get("refund-7")).approve(reason="the lamp was broken")
    paid = await refund.result(LIMIT_SECONDS)
    display.check(paid == "order 7 is refunded", "approved by the clerk, it runs")
    await display.command("policy", "apply", "--remove")
