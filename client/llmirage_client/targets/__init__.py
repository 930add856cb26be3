"""Targets: where a turn is sent over HTTP, and the API that each endpoint speaks."""
