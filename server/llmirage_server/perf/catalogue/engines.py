"""Serving engines: their defaults, how they count memory, how they split experts, and what their host side costs."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from llmirage_server.perf.catalogue.gpus import GIB, GpuSpec
from llmirage_server.perf.catalogue.own_yaml import Key, is_yaml_path, one_of, positive, read_own, text, truth, whole
from llmirage_server.perf.errors import DeploymentError

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

KvPool = Literal["share_of_all", "share_of_free_at_start", "share_of_free"]
Dispatch = Literal["all_gather", "all_to_all", "wide_all_to_all"]
Activations = Literal["bf16", "fp8", "fp4"]
Overlap = Literal["layers", "chunks", "none"]


@dataclass(frozen=True, slots=True)
class EngineProfile:
    """What the performance model knows of one serving engine; one entry of data/engines.yaml or of a user's own file.

    Time of a step = max(GPU time, hidden host time) + exposed host time: the engines prepare a step while the GPU works on
    the one before. `host_*` is exposed, `hidden_*` is the shortest step that the host can keep up with.

    kv_pool says what the KV cache gets, f being the utilization: share_of_all (vLLM) f x memory - weights - peak activations
    - reserve; share_of_free_at_start (SGLang) f x (memory - reserve) - weights, activations living in the rest;
    share_of_free (TensorRT-LLM) f x (memory - weights - peak activations - reserve).
    """

    name: str
    base: str  # the named engine: whose kernels, scheduler and words it has
    title: str
    version: str  # of the engine whose kernels were measured
    scheduler: str
    block_size: int  # tokens
    max_num_seqs: Mapping[float, int]  # from so much GPU memory (GiB) on
    max_num_batched_tokens: Mapping[float, int]
    kv_pool: KvPool
    reserve_gib: float  # CUDA context, graphs, communicators
    host_step_ms: float
    host_sequence_us: float
    hidden_step_ms: float
    hidden_sequence_us: float
    mixed_attention: bool  # prompt chunks and decodes share one launch of attention
    dp_sync_ms: float  # attention data parallelism: agreeing on the next step
    front_end_ms: float  # HTTP, tokenizer, detokenizer: once a request, before the first token
    moe_dispatch: Dispatch  # how tokens get to experts under attention data parallelism
    # From so many ranks on: MiB of an all-reduce up to which the norm after it is no kernel of its own; {}: it always is one
    fused_norm_mib: Mapping[str, Mapping[int, float]]  # by "hopper" and "blackwell"
    mxfp4_activations: Activations  # of experts in mxfp4, on GPUs that multiply 4-bit weights with 8-bit activations
    async_scheduling: bool  # a step is formed while the one before it runs
    whole_windows: bool  # layers of sliding windows keep the whole context in the KV cache
    flags: Mapping[str, str]  # our name of a limit -> the engine's
    source: str
    reserve_doubling_gib: float = 0.0  # more of them with each doubling of an instance's GPUs
    gpu_memory_utilization: float | None = None  # None: by SGLang's rule (memory.sglang_static_share)
    kv_overlap: Overlap = "none"  # what of a prompt's KV goes to a decode instance while the rest is computed
    handoff_ms: float = 0.0  # from a prefill to its decode instance, beside the transfer and the waiting for steps
    speculative_sequence_us: float = 0.0  # exposed host time of a step for each sequence whose drafts it verifies
    prefill_in_place: float = 1.0  # prefill within a running server / its kernels measured one by one
    prefill_in_place_pcie: float = 1.0  # the same of PCIe cards
    prefill_in_place_fp4: float | None = None  # the same of GPUs that multiply in fp4, PCIe cards too; None: as the others
    eager_layer_us: float = 0.0  # launching a layer of a step with prompts: what the GPUs do meanwhile shows only beyond it
    eager_linear_us: float = 0.0  # the same of linear attention, whose chunked kernels are many; 0: as any other layer
    eager_dense_share: float = 1.0  # of it, a layer without experts: its kernels are fewer
    hidden_request_us: float = 0.0  # more than a step's own: for each request that runs, in any step of a pipeline
    hidden_pipeline_ms: float = 0.0  # the same of a step of a pipeline: messages between the stages
    grace_host: float = 1.0  # hidden times on a Grace CPU / on x86
    captured_tokens: int = 0  # a step of at most so many, and of at most two a sequence, replays graphs between attentions
    graph_batches: tuple[
        int, ...
    ] = ()  # sequences of CUDA graphs that decoding steps are padded to; (): as if each had its own
    captured_share: float = 1.0  # of the launching, what such a step has left
    mxfp4_activations_rocm: Activations | None = None  # of what AMD quantised to mxfp4, on its GPUs; None: as others
    eager_layer_us_rocm: float | None = None  # launching a layer on AMD GPUs; None: as on others
    rocm_step_ms: Mapping[str, float] = field(default_factory=dict)  # of each step on AMD GPUs, by architecture
    output_token_us: float = 0.0  # of the front end for each token that goes out: requests wait behind them
    tokenize_ms: float = 0.0  # of the front end for a request, while others wait: tokenizer, scheduler's input
    tokenize_token_us: float = 0.0  # the same for each token of the prompt
    decode_scale: float = 1.0  # measured / modelled GPU time of decoding
    prefill_scale: float = 1.0

    def seqs_on(self, gpu: GpuSpec) -> int:
        """Default of the most sequences that run at once."""
        return _tier(self.max_num_seqs, gpu)

    def batched_tokens_on(self, gpu: GpuSpec) -> int:
        """Default of the most tokens in one step."""
        return _tier(self.max_num_batched_tokens, gpu)

    def host_s(self, gpu_s: float, rows: int) -> float:
        """Seconds that the host adds to a decoding step of `gpu_s` with `rows` sequences."""
        seen_s, hidden_s = self.host_parts_s(rows)
        return seen_s + max(0.0, hidden_s + self.handling_s(rows, 1) - gpu_s)

    def host_parts_s(self, rows: int) -> tuple[float, float]:
        """What the host adds to every step with `rows` sequences, and what shows only as far as the GPUs are quicker."""
        seen_s = self.host_step_ms * 1e-3 + self.host_sequence_us * 1e-6 * rows
        return seen_s, self.hidden_step_ms * 1e-3 + self.hidden_sequence_us * 1e-6 * rows

    def handling_s(self, rows: int, stages: int) -> float:
        """Of a step, for all requests that run, `rows` in each of a pipeline's steps: hidden like a step's own."""
        step_ms = self.hidden_pipeline_ms if stages > 1 else 0.0
        return step_ms * 1e-3 + self.hidden_request_us * 1e-6 * rows * stages

    def fused_norm_bytes(self, gpu: GpuSpec, ranks: int) -> float:
        """The largest all-reduce over NVLink whose kernel does the norm after it, too."""
        by_ranks = self.fused_norm_mib.get("blackwell" if "fp4" in gpu.rates else "hopper" if "fp8" in gpu.rates else "", {})
        least = max((each for each in by_ranks if each <= ranks), default=None)
        return 0.0 if least is None else by_ranks[least] * 2**20

    def launching_s(self, layers: int, linear_layers: int, dense_layers: int) -> float:
        """Of a step with prompts through so many layers, some of linear attention, some without experts, without graphs."""
        linear_us = self.eager_linear_us or self.eager_layer_us
        dense_us = self.eager_dense_share * self.eager_layer_us
        others = layers - linear_layers - dense_layers
        return 1e-6 * (self.eager_layer_us * others + linear_us * linear_layers + dense_us * dense_layers)

    def prefill_in_place_on(self, gpu: GpuSpec) -> float:
        """By how much kernels are slower in long prompts of a running server than one by one."""
        if gpu.profiled:
            return 1.0
        if self.prefill_in_place_fp4 is not None and "fp4" in gpu.rates:
            return self.prefill_in_place_fp4
        return self.prefill_in_place_pcie if gpu.link_kind == "pcie" else self.prefill_in_place

    def on(self, gpu: GpuSpec) -> EngineProfile:
        """The profile on machines with such GPUs."""
        if gpu.grace:
            slower = {name: self.grace_host * getattr(self, name) for name in _HIDDEN}
            return replace(self, grace_host=1.0, **slower)
        if gpu.link_kind != "infinity-fabric":
            return self
        eager = self.eager_layer_us if self.eager_layer_us_rocm is None else self.eager_layer_us_rocm
        more_ms = self.rocm_step_ms.get(gpu.arch, 0.0)
        return replace(self, eager_layer_us=eager, host_step_ms=self.host_step_ms + more_ms, rocm_step_ms={})

    @property
    def front_end_ttft_s(self) -> float:
        """Seconds that HTTP and tokenization add to the time to the first token."""
        return self.front_end_ms * 1e-3


_HIDDEN = (
    "hidden_step_ms", "hidden_sequence_us", "hidden_request_us", "hidden_pipeline_ms", "eager_layer_us", "eager_linear_us",
)  # fmt: skip


def list_engines() -> list[EngineProfile]:
    """Return every engine of the package."""
    return [_engine(name) for name in _data()]


def find_engine(name: str) -> EngineProfile:
    """Return the engine of that name, or that of a YAML file on disk (`base:` a named one, and what differs).

    A name may end with a version, as in vllm@0.12; without one it is the newest. A name is a path when it ends with .yaml or
    .yml or has a slash. Raises DeploymentError with everything that is wrong.
    """
    if is_yaml_path(name) or "/" in name:
        return _from_file(Path(name).expanduser())
    name, at, version = name.partition("@")
    plain = {_plain(n): n for n in (*_data(), *(e["title"] for e in _data().values()))}
    titles = {e["title"]: n for n, e in _data().items()}
    if (found := plain.get(_plain(name))) is not None:
        engine = _engine(titles.get(found, found))
        return _version(engine, version) if at else engine
    near = difflib.get_close_matches(_plain(name), plain, n=1)
    hint = f"did you mean {titles.get(plain[near[0]], plain[near[0]])}?" if near else f"choices: {', '.join(_data())}"
    raise DeploymentError([f"unknown engine {name!r}; {hint}"])


def _version(engine: EngineProfile, version: str) -> EngineProfile:
    """The profile of a version: with the first entry of its `versions` that is not older; else the newest."""
    known = _data()[engine.base].get("versions", {})
    asked = _numbers(version)
    if not asked:
        choices = ", ".join(f"{engine.base}@{each}" for each in known)
        older = f"; older profiles: {choices}" if known else ""
        raise DeploymentError(
            [f"unknown version {version!r} of {engine.title}: give a number, as in {engine.base}@1.2{older}"]
        )
    differences: dict[str, Any] = next((known[last] for last in known if asked[: len(_numbers(last))] <= _numbers(last)), {})
    return replace(engine, name=f"{engine.base}@{version}", title=f"{engine.title} {version}", **differences)


def _numbers(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with: of 1.0.0rc3 it is (1, 0, 0)."""
    numbers = re.match(r"v?(\d+(?:\.\d+)*)", version)
    return tuple(map(int, numbers[1].split("."))) if numbers else ()


def _plain(name: str) -> str:
    return "".join(c for c in name.casefold() if c.isalnum())


def _tier(tiers: Mapping[float, int], gpu: GpuSpec) -> int:
    memory = gpu.memory_bytes / GIB
    # vLLM gives the A100 the limits of a small GPU, whatever its memory
    at = 0.0 if gpu.key.startswith("a100") and len(tiers) == 2 else memory
    return tiers[max(least for least in tiers if least <= at)]


@cache
def _data() -> dict[str, dict[str, Any]]:
    text = Path(__file__).with_name("data").joinpath("engines.yaml").read_text(encoding="utf-8")
    data: dict[str, dict[str, Any]] = yaml.load(text, Loader=_Loader)
    return data


@cache
def _engine(name: str) -> EngineProfile:
    return EngineProfile(name=name, base=name, **{key: value for key, value in _data()[name].items() if key != "versions"})


_TIERS = ("max_num_seqs", "max_num_batched_tokens")


def _not_negative(value: Any) -> str:
    return "" if (value == 0 and value is not False) or not positive(value) else "must be a number, at least 0"


def _sizes(value: Any) -> str:
    good = isinstance(value, list) and not any(map(whole, value))
    return "" if good else "must be a list of positive integers"


def _tiers(value: Any) -> str:
    tiers = value if isinstance(value, dict) else {0: value}
    good = 0 in tiers and not any(map(whole, tiers.values()))
    return "" if good else "must be a positive integer, or one for each GPU memory in GiB from 0 on"


def _unknown_base(value: Any) -> str:
    if not isinstance(value, str) or is_yaml_path(value) or "/" in value:
        return f"unknown engine {value!r}; choices: {', '.join(_data())}"
    try:
        find_engine(value)
    except DeploymentError as error:
        return error.problems[0]
    return ""


def _keys() -> dict[str, Key]:
    """What an engine file may hold: a base, and any field of EngineProfile but its flags; most are times."""
    own = (each.name for each in fields(EngineProfile) if each.name not in ("flags", "rocm_step_ms"))
    return {
        **dict.fromkeys(own, Key(_not_negative)),
        **dict.fromkeys(("name", "title", "version", "source"), Key(text)),
        **dict.fromkeys(_TIERS, Key(_tiers)),
        **dict.fromkeys(("mixed_attention", "async_scheduling", "whole_windows"), Key(truth)),
        **dict.fromkeys(("decode_scale", "prefill_scale"), Key(positive)),
        **dict.fromkeys(("prefill_in_place", "prefill_in_place_pcie", "prefill_in_place_fp4"), Key(positive)),
        "base": Key(_unknown_base),
        "scheduler": Key(one_of("vllm", "sglang", "trtllm")),
        "kv_pool": Key(one_of(*get_args(KvPool))),
        "mxfp4_activations": Key(one_of("bf16", "fp8")),
        "mxfp4_activations_rocm": Key(one_of(*get_args(Activations))),
        "kv_overlap": Key(one_of(*get_args(Overlap))),
        "moe_dispatch": Key(one_of(*get_args(Dispatch))),
        "block_size": Key(whole),
        "graph_batches": Key(_sizes),
        "gpu_memory_utilization": Key(lambda share: positive(share) or ("must be at most 1" if share > 1 else "")),
    }


def _from_file(file: Path) -> EngineProfile:
    names = ", ".join(_data())
    values, _ = read_own(str(file), _keys(), f"an engine file is a list of `key: value` lines, with `base` one of {names}")
    if "base" not in values:
        raise DeploymentError([f"{file}: base is missing; choices: {names}"])
    base = find_engine(values.pop("base"))
    tiers = {name: {0.0: values[name]} for name in _TIERS if isinstance(values.get(name), int)}
    if "fused_norm_mib" in values:  # one number there, whatever the GPU and its ranks
        values["fused_norm_mib"] = {key: {2: values["fused_norm_mib"]} for key in ("hopper", "blackwell")}
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return replace(base, **{"name": file.stem, **values, **tiers, **lists})
