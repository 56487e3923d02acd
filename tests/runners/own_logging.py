"""An app that sets up logging when it is imported."""

from holdfast.app.log_format import configure_logging
from tests.runners.handlers import app

__all__ = ["app"]

configure_logging()
