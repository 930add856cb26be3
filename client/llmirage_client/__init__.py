"""Workloads, session runner, targets, measurements and reports."""
