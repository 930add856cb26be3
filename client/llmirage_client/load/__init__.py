"""Putting a workload's conversations on the wire: arrivals, the session runner, branches, stop conditions."""
