"""Tiers that several tests share."""

from __future__ import annotations

from llmirage_server.cluster.kv.offload import TierSpec

BYTES = 2.0  # a token
HOST = TierSpec("host", capacity_bytes=400.0, read_bytes_per_s=20.0, write_bytes_per_s=40.0)  # 200 tokens
