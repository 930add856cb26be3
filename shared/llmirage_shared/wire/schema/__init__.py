"""Request bodies as pydantic models: what is accepted, documented in /openapi.json, and refused in the API's own words.

Importing this package imports pydantic (a tenth of a second): do it when the first request arrives, not at start-up.
"""
