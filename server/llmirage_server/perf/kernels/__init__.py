"""How long one kernel takes: a module for each family of operations."""
