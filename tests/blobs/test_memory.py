"""A large blob goes through a worker without being in its memory."""

from bench.programs.blobs import measure_growth
from tests.support.processes import run_together

MEGABYTE = 1_000_000


def test_a_large_blob_is_streamed_with_little_memory(blobs_address: str) -> None:
    arguments = [{"place": blobs_address, "size": 64 * MEGABYTE}]

    [grown] = run_together(measure_growth, arguments)

    assert grown < 20 * MEGABYTE
