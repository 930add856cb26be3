"""The HTTP side of every endpoint: requests, bodies, access, limits, errors, event streams."""
