"""An app whose import never ends."""

from tests.runners.handlers import app, sleep_forever

__all__ = ["app"]

sleep_forever()
