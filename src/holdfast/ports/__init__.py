"""The ports: what the flow needs from the outside world. Adapters implement them."""
