"""Synthetic workloads: presets and their parameters, what is drawn from them, and the sessions written from that."""
