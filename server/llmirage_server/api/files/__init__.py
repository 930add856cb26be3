"""/v1/files: files that are uploaded, and those that batches write."""
