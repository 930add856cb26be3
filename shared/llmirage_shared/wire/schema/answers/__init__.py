"""Response bodies as pydantic models, for /openapi.json and for tests: nothing is built from them, they would cost too much.

A field without a default is always there; one with a default may be absent.
"""
