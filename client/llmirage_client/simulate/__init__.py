"""Simulations: workloads on a simulated cluster in virtual time."""
