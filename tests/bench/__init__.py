"""The bench: its statistics, its judgement, its proofs, and that nothing flatters."""
