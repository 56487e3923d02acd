"""Whether commands and agents can be cleaned from here."""

from __future__ import annotations

from holdfast.errors import HoldfastError
from holdfast.flow.blobs_on_demand import BlobsOnDemand, BlobsPlan
from holdfast.ports.store import Store
from holdfast.stores.findings import Finding, warning


async def examine_cleaning(store: Store, plan: BlobsPlan) -> list[Finding]:
    """Report a place of blobs that a janitor with these settings cannot reach."""
    try:
        await BlobsOnDemand(store, plan).find()
    except (HoldfastError, OSError) as error:
        text = f"commands and agents are not cleaned with these settings: {error}"
        return [warning("cleaning", text, "give the --blobs and --command-dir of the workers")]
    return []
