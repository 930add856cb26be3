"""`llmirage simulate`: a workload on a simulated cluster in virtual time."""
