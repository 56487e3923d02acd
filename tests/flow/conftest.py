"""Fresh stores for each test; every job is verified afterwards."""

from tests.support.verified_stores import (
    address,
    either_store,
    postgres_template,
    shared_postgres_url,
    store,
)

__all__ = ["address", "either_store", "postgres_template", "shared_postgres_url", "store"]
