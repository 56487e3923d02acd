"""The bridge between a store and a bus: jobs go out to workers there, and what they say comes in."""
