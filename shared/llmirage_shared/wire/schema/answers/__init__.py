"""Response bodies as pydantic models, for /openapi.json and for tests. No response is built from them: that is slow.

A field without a default is always present; one with a default may be absent.
"""
