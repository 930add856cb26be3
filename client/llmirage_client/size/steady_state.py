"""Loads that are measured in the steady state: after the cluster has filled up, and while the load is still on."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from llmirage_client.load.options import RunOptions
from llmirage_client.simulate.simulation import Window
from llmirage_client.simulator.bounds import Bounds
from llmirage_client.simulator.deployments import units
from llmirage_client.simulator.engine import ClusterConfig, plan_of
from llmirage_client.size.traffic import RequestSource, Traffic
from llmirage_client.workload.session import Workload

NOT_STEADY = (
    "a steady state needs one request rate or a number of users all the time, requests in token counts (lengths, or a "
    "file of them), and one pool without fixed times"
)
_FILLING = 8  # requests sent before those that are measured, beside as many as the cluster holds
_LATENCY_S = 5.0  # assumed where the roofline has no estimate
_OLD = 99  # percent of the turns are not older: a simulation is measured when these ages are all there
_SETTLED = 1.5  # lifetimes until as many conversations end as begin and the caches are full
_OVERLOADED = 2  # times the measured requests: enough to fill a cluster that cannot keep up anyway


@dataclass(frozen=True, slots=True)
class FillUp:
    """The filling of a cluster by a traffic. busy: requests in flight then, about. first: requests sent until then.

    lifetime_s: how old conversations get. waiting: further requests of those that have begun; 0 for single turns at a rate.
    """

    busy: int
    first: int
    waiting: int
    lifetime_s: float


def fill_up(traffic: Traffic, bounds: Bounds, instances: int, measured: int) -> FillUp:
    """Return the filling of a cluster. bounds: of one instance. measured: how many requests are to be measured."""
    source, amount = traffic.source, traffic.amount
    busy = _running(traffic, bounds, instances, measured)
    by_rate = traffic.kind == "request_rate"
    latency_s = busy / amount if by_rate else _latency_s(source, bounds, instances, int(amount))
    ages_s = source.ages_s(latency_s)
    lifetime_s = float(np.percentile(ages_s, _OLD)) + latency_s
    if not by_rate:
        waiting = math.ceil(amount * source.clumping)
        return FillUp(busy, 2 * busy + waiting, waiting, lifetime_s)
    if source.single_turns:
        return FillUp(busy, busy + _FILLING, 0, lifetime_s)
    begun = amount * float(np.clip(_SETTLED * lifetime_s - ages_s, 0.0, None).mean())  # requests until then
    return FillUp(busy, math.ceil(begun + busy + _FILLING), math.ceil(amount * lifetime_s), lifetime_s)


def steady_load(
    config: ClusterConfig, source: RequestSource, options: RunOptions, count: int
) -> tuple[Workload, RunOptions, Window] | None:
    """Return a load of which `count` requests are measured; conversations at a rate do not know of each other.

    None for loads without one request rate or a number of users, where requests are text, and where the roofline does not
    know how long they take. Conversations of a file come in an order of the seed. Raises ConfigError.
    """
    rate = options.request_rate_per_s
    users = options.concurrency if options.rates is None else None
    scheduled = options.fixed_schedule or options.user_rate_per_s is not None
    if scheduled or (rate is None and users is None) or options.request_rate_ramp_s:
        return None
    if not _on_engine(config, source, options) or not fills_foreseeably(config):
        return None
    if rate is not None and options.request_rate_of == "conversations":
        rate *= source.mean_turns
    if options.sampling == "sequential":
        options = replace(options, sampling="shuffle")
    traffic = Traffic(source, "concurrency", users, options) if rate is None and users else None
    traffic = traffic or Traffic(source, "request_rate", rate or 0.0, options)
    instances = units(config)
    fill = fill_up(traffic, Bounds(replace(config, instances=1)), instances, count)
    sent = fill.first + count + 2 * fill.busy
    return source.workload(sent + fill.waiting), traffic.run_options(sent, fill.lifetime_s), Window(fill.first, count)


def _on_engine(config: ClusterConfig, source: RequestSource, options: RunOptions) -> bool:
    """Return whether the engine alone simulates these requests: lengths, and token ids for a completions API."""
    if source.tokens_alone:
        return True
    plain = options.streaming and not options.extra_inputs and options.endpoint_type in (None, "completions")
    return plain and source.in_tokens and len({pool.model for pool in plan_of(config)}) == 1


def fills_foreseeably(config: ClusterConfig) -> bool:
    """Return whether the roofline knows how long requests take: not for fixed times, nor for several pools."""
    return len(config.pools) < 2 and Bounds(replace(config, instances=1)).tpot_s(1) is not None


def _running(traffic: Traffic, bounds: Bounds, instances: int, measured: int) -> int:
    """Return the approximate number of requests in flight at a time."""
    if traffic.kind == "concurrency":
        return int(traffic.amount)
    lengths = traffic.source.lengths
    one = bounds.running(lengths, traffic.amount / instances) if lengths is not None else None
    if lengths is None or one is None:
        return math.ceil(traffic.amount * _LATENCY_S)
    busy = one * instances
    return busy if one != bounds.most_running(lengths) else min(busy, _OVERLOADED * measured)


def _latency_s(source: RequestSource, bounds: Bounds, instances: int, users: int) -> float:
    """Return the approximate latency of a request with `users` users."""
    lengths = source.lengths
    if lengths is None or (most := bounds.most_requests_per_s(lengths)) is None:
        return _LATENCY_S
    return max(bounds.latency_s(lengths) or 0.0, users / (most * instances))


def gradual_start_s(config: ClusterConfig, workload: Workload, options: RunOptions) -> float:
    """Return the time until all users have started: about a turn and the think time after it.

    0 for other loads than closed loops, and where the roofline does not know how long a turn takes: for texts, for
    fixed times and for several pools. Raises ConfigError.
    """
    users = options.concurrency or 1
    if users == 1 or options.rates is not None or options.fixed_schedule or options.user_rate_per_s is not None:
        return 0.0
    lengths = RequestSource(lambda _: workload, None, "").lengths
    instances = units(config)
    bounds = Bounds(replace(config, instances=1))
    if lengths is None or len(config.pools) > 1 or (most := bounds.most_requests_per_s(lengths)) is None:
        return 0.0
    think_s = float(np.mean([turn.delay_s for session in workload.sessions.values() for turn in session.turns]))
    return max(bounds.latency_s(lengths) or 0.0, users / (most * instances)) + think_s
