"""What an operator sees: meters, their export, spans and log lines. Nothing here decides."""
