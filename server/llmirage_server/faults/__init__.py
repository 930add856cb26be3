"""Fault injection: what goes wrong on purpose, for which requests, and how a response is altered on its way out."""
