"""Requests that are answered elsewhere: by an upstream, or by recordings."""
