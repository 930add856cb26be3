"""The page at `/` of a running server: what it simulates, what happens now, and the last requests."""
