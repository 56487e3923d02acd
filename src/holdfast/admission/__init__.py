"""Which jobs may run: pure decisions from rules, without a store, a clock or a network."""
