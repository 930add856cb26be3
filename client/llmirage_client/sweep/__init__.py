"""`llmirage sweep`: many clusters and loads, simulated and compared."""
