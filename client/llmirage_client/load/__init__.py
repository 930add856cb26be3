"""Arrivals, the session runner, branches and stop conditions."""
