"""Loaders of workload formats, a module per family of them; `../registry.py` finds them."""
