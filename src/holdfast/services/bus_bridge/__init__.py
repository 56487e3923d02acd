"""The bridge between a store and a bus: jobs go out to workers, and their reports come in."""
