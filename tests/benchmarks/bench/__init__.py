"""Benchmarks: CPU cost of the hot paths, compared with a committed baseline. See __main__.py."""
