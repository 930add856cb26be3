"""Endpoints of llmirage itself: /openapi.json, and everything under /llmirage/."""
