"""Tiers, sequences and requests that tests of KV memory share."""

import numpy as np

from llmirage_server.cluster.kv.offload import TierSpec
from llmirage_server.cluster.request import Request, Sequence

BYTES = 2.0  # a token
HOST = TierSpec("host", capacity_bytes=400.0, read_bytes_per_s=20.0, write_bytes_per_s=40.0)  # 200 tokens


def sequence(first: int, prompt: int, output: int = 1) -> Sequence:
    ids = np.arange(first, first + prompt, dtype=np.int32)
    return Sequence(Request(first, ids, np.arange(first + 500, first + 500 + output, dtype=np.int32)))


def turn(number: int, first: int, prompt: int, output: int = 1) -> Request:
    return Request(number, np.arange(first, first + prompt, dtype=np.int32), np.full(output, 9, np.int32))
