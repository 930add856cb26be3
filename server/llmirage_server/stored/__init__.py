"""Endpoints of stored objects: files, batches, conversations."""
