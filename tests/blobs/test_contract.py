"""Both kinds of places keep the contract of blobs."""

import pytest

from holdfast.blobs.place import read_place
from holdfast.ports.blobs import Blobs
from holdfast.testing import BlobContract
from holdfast.wiring import open_place


class TestPlaces(BlobContract):
    """A directory, and a bucket of a server that speaks S3."""

    @pytest.fixture
    async def blobs(self, blobs_address: str) -> Blobs:
        return await open_place(read_place(blobs_address), "store")
