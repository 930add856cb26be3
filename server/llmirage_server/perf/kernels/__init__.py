"""The time of one kernel: a module for each family of operations."""
