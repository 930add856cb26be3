"""Drivers supply the cluster with time: the wall clock, or virtual time."""
