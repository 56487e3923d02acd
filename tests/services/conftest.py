"""Apps on either engine with short leases; every job is verified afterwards."""

from tests.worker.conftest import app, postgres_template, silence, url

__all__ = ["app", "postgres_template", "silence", "url"]
