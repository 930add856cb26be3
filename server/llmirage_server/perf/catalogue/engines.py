"""Serving engines: their defaults, how they count memory, how they split experts, and what their host side costs."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from llmirage_server.perf.catalogue.gpus import GIB, GpuSpec
from llmirage_server.perf.errors import DeploymentError

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

KvPool = Literal["share_of_all", "share_of_free_at_start", "share_of_free"]
Dispatch = Literal["all_gather", "all_to_all"]

_CHOICES = {
    "kv_pool": ("share_of_all", "share_of_free_at_start", "share_of_free"),
    "moe_dispatch": ("all_gather", "all_to_all"),
    "scheduler": ("vllm", "sglang", "trtllm"),
}


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
    fused_all_reduce_norm: bool  # the norm after an all-reduce is no kernel of its own
    flags: Mapping[str, str]  # our name of a limit -> the engine's
    source: str
    gpu_memory_utilization: float | None = None  # None: by SGLang's rule (memory.sglang_static_share)
    decode_scale: float = 1.0  # measured / modelled GPU time of decoding
    prefill_scale: float = 1.0

    def seqs_on(self, gpu: GpuSpec) -> int:
        """Default of the most sequences that run at once."""
        return _tier(self.max_num_seqs, gpu)

    def batched_tokens_on(self, gpu: GpuSpec) -> int:
        """Default of the most tokens in one step."""
        return _tier(self.max_num_batched_tokens, gpu)

    def host_s(self, gpu_s: float, rows: int) -> float:
        """Seconds that the host adds to a step of `gpu_s` with `rows` sequences."""
        seen_s, hidden_s = self.host_parts_s(rows)
        return seen_s + max(0.0, hidden_s - gpu_s)

    def host_parts_s(self, rows: int) -> tuple[float, float]:
        """What the host adds to every step with `rows` sequences, and what shows only as far as the GPUs are quicker."""
        seen_s = self.host_step_ms * 1e-3 + self.host_sequence_us * 1e-6 * rows
        return seen_s, self.hidden_step_ms * 1e-3 + self.hidden_sequence_us * 1e-6 * rows

    @property
    def front_end_ttft_s(self) -> float:
        """Seconds that HTTP and tokenization add to the time to the first token."""
        return self.front_end_ms * 1e-3


def list_engines() -> list[EngineProfile]:
    """Return every engine of the package."""
    return [_engine(name) for name in _data()]


def find_engine(name: str) -> EngineProfile:
    """Return the engine of that name, or that of a YAML file on disk (`base:` a named one, and what differs).

    A name is a path when it ends with .yaml or .yml or has a slash. Raises DeploymentError with everything that is wrong.
    """
    if name.endswith((".yaml", ".yml")) or "/" in name:
        return _from_file(Path(name).expanduser())
    plain = {_plain(n): n for n in (*_data(), *(e["title"] for e in _data().values()))}
    titles = {e["title"]: n for n, e in _data().items()}
    if (found := plain.get(_plain(name))) is not None:
        return _engine(titles.get(found, found))
    near = difflib.get_close_matches(_plain(name), plain, n=1)
    hint = f"did you mean {titles.get(plain[near[0]], plain[near[0]])}?" if near else f"choices: {', '.join(_data())}"
    raise DeploymentError([f"unknown engine {name!r}; {hint}"])


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
    return EngineProfile(name=name, base=name, **_data()[name])


_TEXTS = ("title", "version", "source", *_CHOICES)
_POSITIVE = ("block_size", "gpu_memory_utilization", "decode_scale", "prefill_scale")
_TIERS = ("max_num_seqs", "max_num_batched_tokens")
_OWN = tuple(f.name for f in fields(EngineProfile) if f.name not in ("name", "base", "flags"))


def _from_file(file: Path) -> EngineProfile:
    try:
        root = yaml.compose(file.read_text(encoding="utf-8"), yaml.SafeLoader)
        values: Any = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise DeploymentError([f"{file}: cannot be read: {reason}"]) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        raise DeploymentError([f"{file}{line}: not valid YAML: {getattr(error, 'problem', error)}"]) from None
    if not isinstance(root, yaml.MappingNode) or not isinstance(values, dict):
        raise DeploymentError([f"{file}: an engine file is a list of `key: value` lines, with `base` one of {_names()}"])
    lines = {key.value: key.start_mark.line + 1 for key, _ in root.value}
    problems = [] if "base" in values else [f"{file}: base is missing; choices: {_names()}"]
    problems += [
        f"{file}:{lines.get(str(key), 1)}: {key}: {problem}" for key, v in values.items() if (problem := _problem(key, v))
    ]
    if problems:
        raise DeploymentError(problems)
    base = _engine(values.pop("base"))
    return replace(base, name=values.pop("name", file.stem), **{k: _value(k, v) for k, v in values.items()})


def _names() -> str:
    return ", ".join(_data())


def _value(key: str, value: Any) -> Any:
    if key in _TIERS and isinstance(value, int):
        return {0.0: value}
    return value


def _problem(key: object, value: Any) -> str:
    """What is wrong with one line of an engine file; "" when nothing is."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if key == "base":
        return "" if value in _data() else f"unknown engine {value!r}; choices: {_names()}"
    if key in _CHOICES:
        choices = _CHOICES[str(key)]
        return "" if value in choices else f"{value!r} is not one of {', '.join(choices)}"
    if key == "name" or key in _TEXTS:
        return "" if isinstance(value, str) else "must be text"
    if key not in _OWN:
        near = difflib.get_close_matches(str(key), _OWN, n=1)
        return f"unknown; did you mean {near[0]}?" if near else f"unknown; choices: base, name, {', '.join(_OWN)}"
    if key in ("fused_all_reduce_norm", "mixed_attention"):
        return "" if isinstance(value, bool) else "must be true or false"
    if key in _TIERS:
        tiers = value if isinstance(value, dict) else {0: value}
        whole = all(isinstance(v, int) and not isinstance(v, bool) and v > 0 for v in tiers.values())
        return "" if whole and 0 in tiers else "must be a positive whole number, or one for each GPU memory in GiB from 0 on"
    if key == "block_size" and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        return "must be a positive whole number"
    if not number or value < 0 or (key in _POSITIVE and value == 0):
        return "must be a positive number" if key in _POSITIVE else "must be a number, at least 0"
    if key == "gpu_memory_utilization" and value > 1:
        return "must be at most 1"
    return ""
