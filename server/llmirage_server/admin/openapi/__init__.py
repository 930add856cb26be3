"""GET /openapi.json: what is served, from the very models that requests are checked with."""
