"""Drivers give the cluster its time: the wall clock, or virtual time."""
