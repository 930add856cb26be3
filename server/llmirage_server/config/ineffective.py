"""Settings that do nothing without another one.

They are refused where who gives one would take the figures for those of something else: a rate of acceptance for speculative
decoding. Where nothing could be otherwise (a router of one instance, one of the sizes of a scan) a note says so.

One table of rules for every command and file. A study or a search looks at many clusters: a setting counts as long as it
has an effect in one of them, and a flag may switch off what settings of a file are about.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from llmirage_server.cluster.lifecycle.autoscaler import TARGETS
from llmirage_server.cluster.limits import ONLY_OF
from llmirage_server.config.cluster import SETTINGS, ClusterConfig
from llmirage_server.config.instance import InstanceSettings
from llmirage_server.perf import DeploymentError
from llmirage_server.perf.catalogue.lookup import find_model
from llmirage_server.perf.engines.lookup import find_engine
from llmirage_shared.settings import ConfigError

_Settings = TypeVar("_Settings", bound=InstanceSettings)


@dataclass(frozen=True, slots=True)
class _Rule(Generic[_Settings]):
    """Settings that do nothing without something else.

    names: of settings. needs: what they are nothing without, for a sentence. met: whether it is there, in settings of the
    kind that the rule is for. harmless: without it the setting could make no difference, so that a note is enough.
    """

    names: str
    needs: str
    met: Callable[[_Settings], bool]
    harmless: bool = False

    def breaks(self, at: _Settings) -> bool:
        """Return if what these settings need is not there."""
        try:
            return not self.met(at)
        except DeploymentError:  # of a name in no catalogue, which is told where the cluster is planned
            return False


def _of_engine(name: str, owner: str) -> _Rule[InstanceSettings]:
    return _Rule(name, f"the {owner} scheduler", lambda at: find_engine(at.engine_name).scheduler == owner)


def _decodes(at: InstanceSettings) -> bool:
    return getattr(at, "role", "both") != "prefill"


_COMPUTED = (
    "perf_model peer_to_peer data_parallel_balance moe_backend max_num_seqs max_num_batched_tokens enable_chunked_prefill "
    "schedule_policy async_scheduling max_loras max_cpu_loras max_lora_rank host_kv_gib disk_kv_gib num_speculative_tokens "
    + " ".join(ONLY_OF)
)

# Of each instance.
RULES: tuple[_Rule[InstanceSettings], ...] = (
    *(_of_engine(name, owner) for name, owner in ONLY_OF.items()),
    _Rule(_COMPUTED, "computed times, not fixed ones (ttft_ms, itl_ms)", lambda at: not at.fixed_times),
    _Rule("moe_backend", "a model with experts", lambda at: find_model(at.model).experts > 0),
    _Rule(
        "peer_to_peer",
        "an instance of several GPUs",
        lambda at: at.tensor_parallel_size * at.pipeline_parallel_size * at.data_parallel_size > 1,
        harmless=True,
    ),
    _Rule(
        "data_parallel_balance prefill_schedule_interval attention_dp_enable_balance",
        "data_parallel_size above 1",
        lambda at: at.data_parallel_size > 1,
        harmless=True,
    ),
    _Rule(
        "attention_dp_timeout_iters attention_dp_batching_wait_iters",
        "attention_dp_enable_balance",
        lambda at: at.attention_dp_enable_balance,
    ),
    _Rule("batch_wait_timeout_iters", "batch_wait_max_tokens_ratio", lambda at: at.batch_wait_max_tokens_ratio > 0),
    _Rule("batch_wait_max_tokens_ratio", "batch_wait_timeout_iters", lambda at: at.batch_wait_timeout_iters > 0),
    _Rule(
        "batch_wait_timeout_iters batch_wait_max_tokens_ratio", "data_parallel_size 1", lambda at: at.data_parallel_size == 1
    ),
    _Rule(
        "scheduler_recv_interval",
        "pipeline_parallel_size 1: a pipeline looks before every step",
        lambda at: at.pipeline_parallel_size == 1,
    ),
    _Rule(
        "async_scheduling",
        "pipeline_parallel_size 1: a pipeline has several steps under way in any case",
        lambda at: at.pipeline_parallel_size == 1 or not at.async_scheduling,
    ),
    _Rule("max_loras max_cpu_loras max_lora_rank", "lora_modules or enable_lora", lambda at: at.takes_lora),
    _Rule("host_kv_gb_per_s", "host_kv_gib", lambda at: at.host_kv_gib > 0),
    _Rule("disk_kv_gb_per_s", "disk_kv_gib", lambda at: at.disk_kv_gib > 0),
    _Rule(
        "acceptance_rate acceptance_length acceptance_rates speculative_method draft_model",
        "num_speculative_tokens",
        lambda at: at.num_speculative_tokens > 0,
    ),
    _Rule("num_speculative_tokens stream_interval", "an instance that decodes, not role prefill", _decodes),
    _Rule(
        "min_instances initial_instances start_up_s scale_interval_s scale_up_after_s scale_down_after_s scale_advisory",
        f"a target of autoscaling (scale_on_{', scale_on_'.join(TARGETS)})",
        lambda at: at.scales,
    ),
    _Rule(
        "scale_percentile",
        "scale_on_ttft_ms or scale_on_itl_ms",
        lambda at: (at.scale_on_ttft_ms, at.scale_on_itl_ms) != (None, None),
    ),
)


def _chooses(cluster: ClusterConfig) -> bool:
    """Return if a router has more than one instance for some request."""
    choices = Counter[tuple[str, str]]()
    for pool in cluster.all_pools:
        choices[pool.model, pool.role] += pool.instances
    return max(choices.values()) > 1


# Of the whole cluster.
CLUSTER_RULES: tuple[_Rule[ClusterConfig], ...] = (
    _Rule("kv_store_gb_per_s", "kv_store_gib", lambda all_: all_.kv_store_gib > 0),
    _Rule(
        "kv_store_gib",
        "computed times, not fixed ones (ttft_ms, itl_ms)",
        lambda all_: not all(pool.fixed_times for pool in all_.all_pools),
    ),
    _Rule("replay_timing replay_match replay_ignore on_miss", "replay", lambda all_: all_.replay is not None),
    _Rule("max_gpu_budget", "a pool that scales (scale_on_...)", lambda all_: any(pool.scales for pool in all_.all_pools)),
    _Rule("upstream_key", "upstream", lambda all_: all_.upstream is not None),
    _Rule("router", "several instances to choose from", _chooses, harmless=True),
    _Rule(
        "session_ttl_s", "router session or llm-d", lambda all_: all_.router == "session" or all_.router.startswith("llm-d:")
    ),
    _Rule(
        "gateway_queue",
        "computed times, not fixed ones (ttft_ms, itl_ms)",
        lambda all_: not all(pool.fixed_times for pool in all_.all_pools),
    ),
    _Rule(
        "objective_priorities gateway_queue_depth gateway_kv_utilization gateway_request_ttl_s gateway_max_requests "
        "gateway_max_bytes gateway_sheddable_max_requests gateway_ordering",
        "gateway_queue",
        lambda all_: all_.gateway_queue,
    ),
    _Rule(
        "class_priorities",
        "schedule_policy priority",
        lambda all_: any(pool.schedule_policy == "priority" for pool in all_.all_pools),
    ),
)

# Where the cluster is simulated without a server, whose faults may let instances crash.
SIMULATED_RULES: tuple[_Rule[ClusterConfig], ...] = (
    _Rule(
        "on_crash",
        "`events` with a crash",
        lambda all_: any(event.action == "crash" for event in all_.events),
        harmless=True,
    ),
)


def check_effect(configs: Iterable[InstanceSettings], simulated: bool = False) -> None:
    """Raise ConfigError with the settings that do nothing wherever one of these gives them, but for harmless ones."""
    if problems := list(without_effect(configs, simulated).values()):
        raise ConfigError(problems)


def without_effect(configs: Iterable[InstanceSettings], simulated: bool = False, harmless: bool = False) -> dict[str, str]:
    """Return a sentence for each setting that does nothing wherever one of these gives it, by its name.

    The name has `pool NAME: ` before it where a pool gives its own. simulated: without a server. harmless: those that are
    worth a note, instead of those that are refused.
    """
    idle: dict[str, str] = {}
    left_out: set[str] = set()
    for config in configs:
        for place, name, missing in _given(config, simulated):
            if missing is None:
                left_out.add(place + name)
            elif missing.harmless is harmless:
                idle.setdefault(place + name, f"{place}{name} has no effect here: it needs {missing.needs}")
            elif harmless:
                left_out.add(place + name)
    return {name: sentence for name, sentence in idle.items() if name not in left_out}


def effect_notes(configs: Iterable[InstanceSettings], simulated: bool = False) -> list[str]:
    """Return the sentences of `without_effect` that are worth a note."""
    return [f"{sentence}." for sentence in without_effect(configs, simulated, harmless=True).values()]


def _given(config: InstanceSettings, simulated: bool) -> Iterator[tuple[str, str, _Rule[Any] | None]]:
    """Yield whose each given setting is, its name, and the rule by which it has no effect."""
    if not isinstance(config, ClusterConfig):
        yield from (("", name, missing) for name, missing in _judged(config, RULES).items())
        return
    rules = (*CLUSTER_RULES, *SIMULATED_RULES) if simulated else CLUSTER_RULES
    yield from (("", name, missing) for name, missing in _judged(config, rules).items())
    for pool in config.all_pools:
        for name, missing in _judged(pool, RULES).items():
            own = bool(config.pools) and getattr(pool, name) != getattr(config, name)
            yield f"pool {pool.name}: " if own else "", name, missing


def _judged(at: InstanceSettings, rules: Iterable[_Rule[Any]]) -> dict[str, _Rule[Any] | None]:
    """Return, for each setting that differs from its default and that rules are about, the rule that it breaks."""
    found: dict[str, _Rule[Any] | None] = {}
    taken = at.args_read.settings if at.args_read else {}  # a real command line may say what has no effect
    for rule in rules:
        for name in rule.names.split():
            if name in taken or not hasattr(at, name) or getattr(at, name) == SETTINGS[name].default:
                continue
            broken = found.setdefault(name, None)
            if (broken is None or (broken.harmless and not rule.harmless)) and rule.breaks(at):
                found[name] = rule
    return found
