"""Plans of the pools, from their configuration: a pool's deployment, its limits, its step times, its names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from llmirage_server.cluster.kv.offload import TierSpec
from llmirage_server.cluster.limits import EngineLimits, FirstToken, StreamInterval
from llmirage_server.cluster.request import MOST_ADAPTERS, Adapter
from llmirage_server.config import ClusterConfig, ConfigError, PoolConfig
from llmirage_server.config.instance import ACCEPTANCE
from llmirage_server.config.lora import lora_module
from llmirage_server.perf import DeploymentError
from llmirage_server.perf.catalogue.gpus import DISK_GB_PER_S, DISK_LATENCY_S, GIB, PCIE_LATENCY_S
from llmirage_server.perf.catalogue.lookup import find_model
from llmirage_server.perf.deployment import Deployment
from llmirage_server.perf.engines.lookup import find_engine
from llmirage_server.perf.kernels.moe import DEFAULT_SKEW, busiest_rank
from llmirage_server.perf.speculation import Speculative, rate_of_length, with_published_acceptance
from llmirage_server.perf.steps.step_model import StepModel
from llmirage_shared.plural import plural, rounded


@dataclass(frozen=True, slots=True)
class ServedPool:
    """A pool with everything that follows from its configuration."""

    config: PoolConfig
    deployment: Deployment
    limits: EngineLimits
    step_model: StepModel
    adapters: tuple[Adapter, ...] = ()  # LoRA, loaded at the start: those of config.lora_modules

    @property
    def max_model_len(self) -> int:
        """Tokens of the longest request."""
        return self.limits.max_request_tokens

    @property
    def model(self) -> str:
        return self.deployment.model.name

    @property
    def names(self) -> tuple[str, ...]:
        """Names that clients may use."""
        return self.config.served_model_name or (self.model,)

    @property
    def kv_blocks(self) -> str:
        return f"KV blocks of {plural(self.limits.page_size, 'token')}"

    @property
    def described(self) -> dict[str, Any]:
        """The running settings by name: those of the catalogue, and nothing left to a default."""
        deployment, parallel = self.deployment, self.deployment.parallel
        return {
            "model": self.model,
            "gpu": deployment.gpu.key,
            "engine": deployment.engine.base,
            "weights": deployment.weight_dtype,
            "kv_cache_dtype": deployment.kv_dtype,
            "tensor_parallel_size": parallel.tp,
            "pipeline_parallel_size": parallel.pp,
            "data_parallel_size": parallel.dp,
            "expert_parallel_size": parallel.ep,
            "max_num_seqs": deployment.max_num_seqs,
            "max_num_batched_tokens": deployment.max_num_batched_tokens,
            "instances": self.config.instances,
        }

    @property
    def assumptions(self) -> dict[str, str]:
        """The main settings that were not given, by name, and in words what counts instead."""
        config, deployment = self.config, self.deployment
        published = deployment.weight_dtype == deployment.model.native_weights
        texts = {
            "model": self.model,
            "gpu": deployment.gpu.name,
            "tensor_parallel_size": "TP1",
            "instances": plural(config.instances, "instance"),
            "weights": f"{deployment.weight_dtype} weights" + (", as published" if published else ""),
        }
        found = {name: text for name, text in texts.items() if name in config.assumed}
        if config.peer_to_peer is None and (link := link_note(deployment)):
            found["peer_to_peer"] = link
        if config.args_read and config.args_read.ignored:
            found["engine_args"] = f"no effect of {', '.join(config.args_read.ignored)}"
        if config.engine is None:
            found["engine"] = f"{deployment.engine.title} with {self.kv_blocks}"
        if deployment.speculative is not None and not any(getattr(config, name) is not None for name in ACCEPTANCE):
            found["acceptance_rate"] = _acceptance_note(deployment.speculative)
        if uneven := _experts_note(deployment):
            found["experts"] = uneven
        return found

    @property
    def tiers(self) -> list[TierSpec]:
        """Tiers of KV that leaves the GPUs of an instance, the nearest first."""
        config, tiers = self.config, []
        if config.host_kv_gib:
            own = config.host_kv_gb_per_s
            rate = own * 1e9 if own else self.deployment.gpu.host_bytes_per_s * self.deployment.gpus
            tiers.append(TierSpec("host", config.host_kv_gib * GIB, rate, rate, PCIE_LATENCY_S))
        if config.disk_kv_gib:
            rate = (config.disk_kv_gb_per_s or DISK_GB_PER_S) * 1e9
            tiers.append(TierSpec("disk", config.disk_kv_gib * GIB, rate, rate, DISK_LATENCY_S))
        return tiers


def described(config: ClusterConfig, pools: Iterable[ServedPool]) -> list[dict[str, Any]]:
    """Each pool as it describes itself, with how requests find their instance, and its price.

    usd_per_h: low and high of the GPUs of all instances, at the catalogue's on-demand prices; None: not known.
    """
    found = []
    for pool in pools:
        gpus, price = pool.deployment.gpus, pool.deployment.gpu.price_usd_per_h
        usd_per_h = None if price is None else [each * gpus * pool.config.instances for each in price]
        found.append(pool.described | {"router": config.router, "gpus_per_instance": gpus, "usd_per_h": usd_per_h})
    return found


_LESS_ACCEPTED = 0.2  # than assumed: what another workload or drafter easily brings
_DECODES = 64  # tokens of a step, of which the busiest rank's share is told


def _acceptance_note(drafts: Speculative) -> str:
    """Return the share of drafts that hold, and the weight of that assumption."""
    rate = drafts.acceptance_rate
    less = replace(drafts, acceptance_rate=max(rate - _LESS_ACCEPTED, 0.0))
    return (
        f"{rate:.0%} of draft tokens hold, {drafts.tokens_per_step:.2f} tokens a step ("
        f"{drafts.acceptance_source or 'a guess, as nothing is published for this model and method'}; with "
        f"{less.acceptance_rate:.0%}, TPOT is {rounded(drafts.tokens_per_step / less.tokens_per_step, 2)} times as long)"
    )


def _experts_note(deployment: Deployment) -> str:
    """Return the unevenness of the experts' use, where they are spread over GPUs; "" elsewhere."""
    moe, parallel = deployment.model.moe, deployment.parallel
    if moe is None or parallel.ep == 1:
        return ""
    if parallel.is_wide:
        return "experts evenly used (EPLB)"
    busiest = busiest_rank(moe.experts, moe.per_token, parallel.ep)
    most = busiest.pairs[busiest.tokens.index(_DECODES)] * parallel.ep / (_DECODES * moe.per_token)
    busiest_gpu = f"of {_DECODES} tokens, the busiest GPU gets {rounded(most, 2)} times the mean"
    return f"experts unevenly used (power law of {DEFAULT_SKEW:g}): {busiest_gpu}"


def link_note(deployment: Deployment) -> str:
    """Return how PCIe cards of an instance exchange data, which depends on board and driver; empty for other GPUs."""
    if deployment.gpu.link != "pcie" or deployment.gpus == 1:
        return ""
    directly = deployment.gpu.peer_to_peer
    how = "copy to each other directly" if directly else "exchange data through the host's memory"
    return f"GPUs {how} (else peer_to_peer {'false' if directly else 'true'})"


def plan(config: ClusterConfig) -> list[ServedPool]:
    """Work out every pool. Raises ConfigError with the problems of all of them."""
    problems: list[str] = []
    pools: list[ServedPool] = []
    known: dict[tuple[Any, ...], tuple[Deployment, StepModel]] = {}  # equal pools share one
    for pool in config.all_pools:
        try:
            pools.append(_plan(pool, config, known))
        except ConfigError as error:
            before = f"pool {pool.name}: " if config.pools else ""
            problems += [before + problem for problem in error.problems]
    if not problems:
        pools = _with_adapters(pools, problems)
        problems += _name_problems(pools)
    if problems:
        raise ConfigError(problems)
    return pools


def _with_adapters(pools: list[ServedPool], problems: list[str]) -> list[ServedPool]:
    """Return the pools with the LoRA adapters of their settings. What is wrong is added to the problems."""
    numbers: dict[str, int] = {}
    found = []
    for pool in pools:
        adapters = []
        for module in map(lora_module, pool.config.lora_modules):
            if module.base is not None and module.base not in pool.names:
                problems.append(f"lora_modules: {module.name} is of {module.base!r}, but {', '.join(pool.names)} is served")
            if any(module.name in other.names for other in pools):
                problems.append(f"lora_modules: a model has the name {module.name!r}")
            number = numbers.setdefault(module.name, len(numbers) + 1)
            try:
                adapters.append(Adapter(module.name, number, module.rank(pool.config.max_lora_rank)))
            except ValueError as error:
                problems.append(f"lora_modules: {module.name}: {error}")
        found.append(replace(pool, adapters=tuple(adapters)))
    if len(numbers) > MOST_ADAPTERS:
        problems.append(f"lora_modules: {len(numbers):,} adapters; there may be {MOST_ADAPTERS:,}")
    return found


def _plan(
    config: PoolConfig, cluster: ClusterConfig, known: dict[tuple[Any, ...], tuple[Deployment, StepModel]]
) -> ServedPool:
    try:
        wanted = _deployment_settings(config)
        key = tuple(wanted.items())
        if key not in known:
            deployment = Deployment.create(**wanted)
            known[key] = deployment, deployment.step_model()
        deployment, step_model = known[key]
        _check_args_model(config, deployment)
        limits = _limits(config, deployment, cluster)
    except ConfigError:
        raise
    except ValueError as error:  # of the limits, which call a block a page
        raise ConfigError([str(error).replace("page_size", "block_size")]) from None
    return ServedPool(config, deployment, limits, step_model)


def _check_args_model(config: PoolConfig, deployment: Deployment) -> None:
    """Refuse engine_args of a model with other layers. A name that is not known is a place on the server's disk."""
    named = config.args_read.settings.get("model") if config.args_read else None
    if named is None or named == config.model:
        return
    try:
        other = find_model(named)
    except DeploymentError:
        return
    if other.groups != deployment.model.groups:
        raise ConfigError([f"engine_args starts {named}, but model is given as {config.model}"])


def _deployment_settings(config: PoolConfig) -> dict[str, Any]:
    slots = (
        config.max_loras or (8 if find_engine(config.engine_name).scheduler == "sglang" else 1) if config.takes_lora else 0
    )
    return {
        "model": config.model,
        "gpu": config.gpu,
        "engine": config.engine_name,
        "tp": config.tensor_parallel_size,
        "pp": config.pipeline_parallel_size,
        "dp": config.data_parallel_size,
        "ep": config.expert_parallel_size,
        "weights": config.weights,
        "kv_cache_dtype": config.kv_cache_dtype,
        "gpu_memory_utilization": config.gpu_memory_utilization,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "max_num_seqs": config.max_num_seqs,
        "num_gpu_blocks_override": config.num_gpu_blocks_override,
        "block_size": config.kv_block_size,
        "speculative": _speculative(config),
        "peer_to_peer": config.peer_to_peer,
        "perf_model": config.perf_model,
        "moe_backend": config.moe_backend,
        "engine_fields": tuple(sorted(_engine_fields(config).items())),
        "lora_slots": slots,
        "max_lora_rank": config.max_lora_rank if slots else 0,
    }


def _engine_fields(config: PoolConfig) -> dict[str, Any]:
    """Return the fields of the engine's profile that the user set."""
    fields = dict(config.args_read.profile) if config.args_read else {}
    return fields if config.async_scheduling is None else {**fields, "async_scheduling": config.async_scheduling}


def _speculative(config: PoolConfig) -> Speculative | None:
    if not config.num_speculative_tokens:
        return None
    drafts = config.num_speculative_tokens
    speculative = Speculative(drafts, config.drafter, config.draft_model)
    if config.acceptance_rates is not None:
        return replace(speculative, acceptance_rates=config.acceptance_rates)
    if config.acceptance_length is not None:
        return replace(speculative, acceptance_rate=rate_of_length(config.acceptance_length, drafts))
    if config.acceptance_rate is not None:
        return replace(speculative, acceptance_rate=config.acceptance_rate)
    try:
        return with_published_acceptance(speculative, find_model(config.model)) if config.model else speculative
    except DeploymentError:  # no such model, which is told with all else that is wrong
        return speculative


def _limits(config: PoolConfig, deployment: Deployment, cluster: ClusterConfig) -> EngineLimits:
    """Return the limits of an instance. Raises ValueError for settings that the engine's scheduler does not know."""
    speculative = deployment.speculative
    seqs = min(deployment.most_running, deployment.memory.sequences)
    if config.max_num_seqs is None:  # engines fit their own default to a smaller step
        seqs = min(seqs, deployment.max_num_batched_tokens)
    limits = EngineLimits(
        kv_tokens=deployment.memory.kv_tokens,
        max_num_seqs=seqs,
        max_num_batched_tokens=deployment.max_num_batched_tokens,
        page_size=deployment.block_size,
        scheduler=deployment.engine.scheduler,
        recurrent_states=deployment.aligned_chunks,
        num_speculative_tokens=speculative.num_speculative_tokens if speculative else 0,
        acceptance_rate=speculative.acceptance_rate if speculative else 0.0,
        acceptance_rates=speculative.acceptance_rates if speculative else (),
        speculation_seed=cluster.seed,
        first_token=_first_token(cluster, deployment),
        stream=_stream(config.stream_interval, deployment),
        async_scheduling=deployment.engine.async_scheduling,
        max_loras=deployment.lora_slots,
        max_cpu_loras=config.max_cpu_loras or deployment.lora_slots,
        **{name: value for name in _SCHEDULING if (value := getattr(config, name)) is not None},
    )
    return replace(limits, max_model_len=_max_model_len(config, deployment, limits))


def _stream(interval: int, deployment: Deployment) -> StreamInterval | None:
    """Return the interval of events: vLLM counts tokens, the others steps of a request, several with speculation."""
    if interval == 1:
        return None
    scheduler, speculative = deployment.engine.scheduler, deployment.speculative
    if speculative is not None and scheduler != "vllm":
        interval = round(interval * speculative.tokens_per_step)
    return StreamInterval(interval, from_start=scheduler == "trtllm")


def _first_token(cluster: ClusterConfig, deployment: Deployment) -> FirstToken:
    """Return when the first token shows of a request whose prefill and decode are on different instances.

    vLLM's decode instance computes the last token of the prompt again; the others get the first token with the KV.
    """
    if cluster.kv_transfer is not None and cluster.kv_transfer.first_token == "prefill":
        return "prefill"
    return "decode" if deployment.engine.scheduler == "vllm" else "admission"


_SCHEDULING = (
    "enable_prefix_caching", "enable_chunked_prefill", "schedule_policy", "long_prefill_token_threshold",
    "max_prefill_tokens", "enable_mixed_chunk", "schedule_conservativeness", "capacity_scheduler_policy",
    "data_parallel_balance", "scheduler_recv_interval", "prefill_schedule_interval",
    "prefill_decode_interval", "batch_wait_timeout_iters", "batch_wait_max_tokens_ratio", "attention_dp_enable_balance",
    "attention_dp_timeout_iters", "attention_dp_batching_wait_iters",
)  # fmt: skip


def _max_model_len(config: PoolConfig, deployment: Deployment, limits: EngineLimits) -> int:
    architecture, memory = deployment.model.max_model_len, limits.max_request_tokens
    wanted = config.max_model_len
    if wanted is None:
        return min(architecture, memory)
    if wanted > architecture:
        raise ConfigError(
            [f"max_model_len {wanted} is more than the context of {deployment.model.name}: {architecture} tokens"]
        )
    if wanted > memory:
        budget = deployment.memory.describe()
        raise ConfigError([f"max_model_len {wanted} is more than the {memory} tokens an instance has room for:\n{budget}"])
    return wanted


def _name_problems(pools: list[ServedPool]) -> Iterator[str]:
    models: dict[str, ServedPool] = {}
    for pool in pools:
        for name in pool.names:
            other = models.setdefault(name, pool)
            if other.model != pool.model:
                yield (
                    f"pools {other.config.name} and {pool.config.name} serve different models "
                    f"({other.model}, {pool.model}) under one name, {name!r}: give them served_model_names of their own"
                )
