"""/v1/batches: files of requests that are answered when nobody else waits."""
