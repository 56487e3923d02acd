"""Workers under faults, as real processes on both stores: killed, stopped, cut off, poisoned."""
