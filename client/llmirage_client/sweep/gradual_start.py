"""Closed loops of a study start gradually: users who all begin at once would be the tail of every point."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from llmirage_client.load.options import RunOptions
from llmirage_client.simulator.bounds import Bounds
from llmirage_client.simulator.engine import ClusterConfig
from llmirage_client.size.traffic import RequestSource
from llmirage_client.workload.session import Workload


def gradual_start_s(config: ClusterConfig, workload: Workload, options: RunOptions) -> float:
    """How long it takes until all users are there: about as long as a turn and the think time after it.

    0 for other loads than closed loops, and where the roofline does not know how long a turn takes: for texts, for
    fixed times and for several pools. Raises ConfigError.
    """
    users = options.concurrency or 1
    if users == 1 or options.rates is not None or options.fixed_schedule or options.user_rate_per_s is not None:
        return 0.0
    lengths = RequestSource(lambda _: workload, None, "").lengths
    bounds = Bounds(replace(config, instances=1))
    if lengths is None or (most := bounds.most_requests_per_s(lengths)) is None:
        return 0.0
    think_s = float(np.mean([turn.delay_s for session in workload.sessions.values() for turn in session.turns]))
    return max(bounds.latency_s(lengths) or 0.0, users / (most * config.instances)) + think_s
