"""The bridge to a bus, with a real nats-server and the real SDK."""
