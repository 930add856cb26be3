"""What-if: the same workloads and runner on a simulated cluster in virtual time."""
