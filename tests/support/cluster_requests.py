"""Requests to small clusters whose times are worked out in the head, and the tokens that they get."""

import math

import numpy as np

from llmirage_server.cluster.cluster import Cluster
from llmirage_server.cluster.request import Request


def request(number: int, output: int = 5) -> Request:
    ids = np.arange(100 * number, 100 * number + 10, dtype=np.int32)
    return Request(number, ids, np.arange(output, dtype=np.int32) + 5000)


def tokens(cluster: Cluster, to: float = math.inf) -> list[tuple[float, int, int]]:
    """Return (time, instance, request) of every token until then."""
    return [(end.time_s, end.instance, each.id) for end in cluster.advance(to) for each in end.emitted]
