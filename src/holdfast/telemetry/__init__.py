"""What an operator sees: meters, their export, spans and log lines. Nothing here decides."""

from holdfast.telemetry.counters import Meters

__all__ = ["Meters"]
