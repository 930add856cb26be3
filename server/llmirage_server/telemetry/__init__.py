"""Measurements of the server itself."""
