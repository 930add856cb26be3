"""Workloads as files: one module a format that can be written."""
