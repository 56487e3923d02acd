"""The project's own contenders, as programs that speak the protocol of `bench.protocol`."""
