"""A seeded nemesis over workers and their store: `make chaos SECONDS=300 SEED=7`."""
