"""Care of the ledger: verify, rebuild, repair, and the health of a store."""
