"""Settings that do nothing without another one. They are refused: who gives one expects figures that follow it.

One table of rules for every command and file. A study or a search looks at many clusters: a setting counts as long as it
has an effect in one of them, and a flag may switch off what settings of a file are about.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from llmirage_server.cluster.limits import ONLY_OF
from llmirage_server.config.cluster import SETTINGS, ClusterConfig
from llmirage_server.config.instance import InstanceSettings
from llmirage_server.perf.catalogue.lookup import find_model
from llmirage_server.perf.engines.lookup import find_engine
from llmirage_server.perf.errors import DeploymentError
from llmirage_shared.settings import ConfigError


@dataclass(frozen=True, slots=True)
class _Rule:
    """names: of settings. needs: what they are nothing without, for a sentence. met: whether it is there."""

    names: tuple[str, ...]
    needs: str
    met: Callable[[InstanceSettings], bool]


def _rule(names: str, needs: str, met: Callable[[InstanceSettings], bool]) -> _Rule:
    return _Rule(tuple(names.split()), needs, met)


def _has_experts(at: InstanceSettings) -> bool:
    try:
        return find_model(at.model).experts > 0
    except DeploymentError:  # told where the cluster is planned
        return True


def _scheduler(at: InstanceSettings, owner: str) -> bool:
    try:
        return find_engine(at.engine_name).scheduler == owner
    except DeploymentError:
        return True


def _of_engine(name: str, owner: str) -> _Rule:
    return _rule(name, f"the {owner} scheduler", lambda at: _scheduler(at, owner))


def _decodes(at: InstanceSettings) -> bool:
    return getattr(at, "role", "both") != "prefill"


_COMPUTED = (
    "perf_model peer_to_peer data_parallel_balance moe_backend max_num_seqs max_num_batched_tokens enable_chunked_prefill "
    "schedule_policy async_scheduling host_kv_gib disk_kv_gib num_speculative_tokens " + " ".join(ONLY_OF)
)

# Of each instance.
RULES = (
    *(_of_engine(name, owner) for name, owner in ONLY_OF.items()),
    _rule(_COMPUTED, "computed times, not fixed ones (ttft_ms, itl_ms)", lambda at: not at.fixed_times),
    _rule("moe_backend", "a model with experts", _has_experts),
    _rule(
        "peer_to_peer",
        "an instance of several GPUs",
        lambda at: at.tensor_parallel_size * at.pipeline_parallel_size * at.data_parallel_size > 1,
    ),
    _rule(
        "data_parallel_balance prefill_schedule_interval attention_dp_enable_balance",
        "data_parallel_size above 1",
        lambda at: at.data_parallel_size > 1,
    ),
    _rule(
        "attention_dp_timeout_iters attention_dp_batching_wait_iters",
        "attention_dp_enable_balance",
        lambda at: at.attention_dp_enable_balance,
    ),
    _rule("batch_wait_timeout_iters", "batch_wait_max_tokens_ratio", lambda at: at.batch_wait_max_tokens_ratio > 0),
    _rule("batch_wait_max_tokens_ratio", "batch_wait_timeout_iters", lambda at: at.batch_wait_timeout_iters > 0),
    _rule(
        "batch_wait_timeout_iters batch_wait_max_tokens_ratio",
        "data_parallel_size 1",
        lambda at: at.data_parallel_size == 1,
    ),
    _rule(
        "scheduler_recv_interval",
        "pipeline_parallel_size 1: a pipeline looks before every step",
        lambda at: at.pipeline_parallel_size == 1,
    ),
    _rule(
        "async_scheduling",
        "pipeline_parallel_size 1: a pipeline has several steps under way in any case",
        lambda at: at.pipeline_parallel_size == 1 or not at.async_scheduling,
    ),
    _rule("host_kv_gb_per_s", "host_kv_gib", lambda at: at.host_kv_gib > 0),
    _rule("disk_kv_gb_per_s", "disk_kv_gib", lambda at: at.disk_kv_gib > 0),
    _rule(
        "acceptance_rate acceptance_length acceptance_rates speculative_method draft_model",
        "num_speculative_tokens",
        lambda at: at.num_speculative_tokens > 0,
    ),
    _rule("num_speculative_tokens stream_interval", "an instance that decodes, not role prefill", _decodes),
    _rule(
        "min_instances initial_instances start_up_s scale_interval_s scale_up_after_s scale_down_after_s",
        "a target of autoscaling (scale_on_queue, scale_on_concurrency, scale_on_kv, scale_on_rate)",
        lambda at: at.scales,
    ),
)


def _cluster_rule(names: str, needs: str, met: Callable[[ClusterConfig], bool]) -> _Rule:
    return _rule(names, needs, lambda at: not isinstance(at, ClusterConfig) or met(at))


def _chooses(cluster: ClusterConfig) -> bool:
    """Whether a router has more than one instance for some request."""
    choices = Counter[tuple[str, str]]()
    for pool in cluster.all_pools:
        choices[pool.model, pool.role] += pool.instances
    return max(choices.values()) > 1


# Of the whole cluster.
CLUSTER_RULES = (
    _cluster_rule("kv_store_gb_per_s", "kv_store_gib", lambda all_: all_.kv_store_gib > 0),
    _cluster_rule(
        "kv_store_gib",
        "computed times, not fixed ones (ttft_ms, itl_ms)",
        lambda all_: not all(pool.fixed_times for pool in all_.all_pools),
    ),
    _cluster_rule("replay_timing replay_match replay_ignore on_miss", "replay", lambda all_: all_.replay is not None),
    _cluster_rule("upstream_key", "upstream", lambda all_: all_.upstream is not None),
    _cluster_rule("router", "several instances to choose from", _chooses),
)

# Where the cluster is simulated without a server, whose faults may let instances crash.
SIMULATED_RULES = (
    _cluster_rule("on_crash", "`events` with a crash", lambda all_: any(event.action == "crash" for event in all_.events)),
)


def check_effect(configs: Iterable[InstanceSettings], simulated: bool = False) -> None:
    """Raises ConfigError with the settings that do nothing wherever one of these gives them."""
    if problems := list(without_effect(configs, simulated).values()):
        raise ConfigError(problems)


def without_effect(configs: Iterable[InstanceSettings], simulated: bool = False) -> dict[str, str]:
    """A sentence for each setting that does nothing wherever one of these gives it, by its name (`pool NAME: ` before it
    where a pool gives its own). simulated: without a server."""
    idle: dict[str, str] = {}
    useful: set[str] = set()
    for config in configs:
        for place, name, needs in _given(config, simulated):
            if needs is None:
                useful.add(place + name)
            else:
                idle.setdefault(place + name, f"{place}{name} has no effect here: it needs {needs}")
    return {name: sentence for name, sentence in idle.items() if name not in useful}


def _given(config: InstanceSettings, simulated: bool) -> Iterator[tuple[str, str, str | None]]:
    """Whose each given setting is, its name, and what is missing for an effect."""
    if not isinstance(config, ClusterConfig):
        yield from (("", name, needs) for name, needs in _judged(config, RULES).items())
        return
    rules = (*CLUSTER_RULES, *SIMULATED_RULES) if simulated else CLUSTER_RULES
    yield from (("", name, needs) for name, needs in _judged(config, rules).items())
    for pool in config.all_pools:
        for name, needs in _judged(pool, RULES).items():
            own = bool(config.pools) and getattr(pool, name) != getattr(config, name)
            yield f"pool {pool.name}: " if own else "", name, needs


def _judged(at: InstanceSettings, rules: Iterable[_Rule]) -> dict[str, str | None]:
    """What is missing for an effect of each setting that differs from its default and that rules are about."""
    found: dict[str, str | None] = {}
    for rule in rules:
        for name in rule.names:
            if hasattr(at, name) and getattr(at, name) != SETTINGS[name].default and found.get(name) is None:
                found[name] = None if rule.met(at) else rule.needs
    return found
