"""Everything that can be configured, in one class: names, defaults and checks. Flags and cluster files both end here."""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from llmirage_server.cluster.router import ROUTERS

AcceptModels = Literal["served", "catalogue", "any"]
ReplyKind = Literal["prose", "echo"]


class ConfigError(ValueError):
    """One or more settings that cannot be used; `problems` has one sentence for each."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """A cluster and the face it shows. Names are vLLM's where the meaning is the same. Raises ConfigError."""

    # what is imitated
    model: str = "Qwen/Qwen3-30B-A3B"
    gpu: str = "h100_sxm"
    instances: int = 2
    tensor_parallel_size: int = 1
    expert_parallel_size: int = 1
    weights: str = "fp8"
    kv_cache_dtype: str = "bf16"
    gpu_memory_utilization: float = 0.9
    # how an instance schedules
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int | None = None  # tokens; None: what the architecture and the KV memory allow
    block_size: int = 1  # tokens of a KV block and of a page of the prefix cache; 16 behaves as vLLM's blocks do
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    router: str = "prefix"
    # time
    speed: float = 1.0  # cluster seconds in a second; inf never waits
    ttft_ms: float | None = None  # with one of these two set, fixed times replace the performance model
    itl_ms: float | None = None
    # what is said, and under which name
    served_model_name: tuple[str, ...] = ()  # () means the model's own name
    accept_models: AcceptModels = "catalogue"
    tokenizer: str | None = None  # folder or hub name; None: the one that ships with the package
    replies: ReplyKind = "prose"
    natural_stop: bool = False  # replies with max_tokens may end before, as models do; without, they have exactly so many
    reply_tokens: int = 156  # median length of a reply that ends by itself (see replies/lengths.py)
    seed: int = 0

    def __post_init__(self) -> None:
        problems = list(self._problems())
        if problems:
            raise ConfigError(problems)

    @property
    def fixed_times(self) -> bool:
        """Whether fixed times replace the performance model."""
        return self.ttft_ms is not None or self.itl_ms is not None

    def _problems(self) -> list[str]:
        problems = []
        for name in (
            "instances",
            "tensor_parallel_size",
            "expert_parallel_size",
            "max_num_seqs",
            "max_num_batched_tokens",
            "max_model_len",
            "block_size",
            "reply_tokens",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                problems.append(f"{name} must be at least 1, not {value}")
        if self.instances > MOST_INSTANCES:
            problems.append(
                f"instances must be at most {MOST_INSTANCES:,} (one process imitates them all), not {self.instances}"
            )
        for name in ("ttft_ms", "itl_ms"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                problems.append(f"{name} must be a number of milliseconds from 0 up, not {value}")
        if not self.speed > 0:
            problems.append(f"speed must be above 0, or max, not {self.speed:g}")
        if not 0 < self.gpu_memory_utilization <= 1:
            problems.append(f"gpu_memory_utilization must be above 0 and at most 1, not {self.gpu_memory_utilization:g}")
        for name, choices in CHOICES.items():
            value = getattr(self, name)
            if value not in choices:
                problems.append(f"{name} must be one of {', '.join(choices)}; not {value!r}{did_you_mean(value, choices)}")
        if any(not name for name in self.served_model_name):
            problems.append("served_model_name must not be empty")
        return problems


MOST_INSTANCES = 10_000

CHOICES: dict[str, tuple[str, ...]] = {
    "router": tuple(ROUTERS),
    "accept_models": get_args(AcceptModels),
    "replies": get_args(ReplyKind),
}

# Shorter or other names for the same setting, in cluster files and as flags.
ALIASES = {
    "tp": "tensor_parallel_size",
    "ep": "expert_parallel_size",
    "page_size": "block_size",
    "num_instances": "instances",
    "ttft": "ttft_ms",
    "itl": "itl_ms",
    "served_model_names": "served_model_name",
}

FIELD_TYPES: Mapping[str, Any] = get_type_hints(ClusterConfig)
DEFAULTS: Mapping[str, Any] = {field.name: field.default for field in dataclasses.fields(ClusterConfig)}


def canonical_name(key: str) -> str | None:
    """The field that a key means; dashes and underscores are the same. None for an unknown key."""
    name = key.replace("-", "_").lower()
    name = ALIASES.get(name, name)
    return name if name in DEFAULTS else None


def did_you_mean(word: object, choices: Sequence[str]) -> str:
    """The end of an error message: the nearest of the choices, if one is near."""
    near = difflib.get_close_matches(str(word), choices, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def convert(name: str, value: Any) -> Any:
    """A value of a cluster file as the field's type. Raises ValueError saying what was expected."""
    if name == "speed" and value == "max":
        return math.inf
    if name == "served_model_name":
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list) or not all(isinstance(item, str) for item in names):
            raise ValueError(f"must be a name or a list of names, not {value!r}")
        return tuple(names)
    accepted = _plain_types(FIELD_TYPES[name])
    if value is None and type(None) in accepted:
        return None
    if float in accepted and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) not in accepted:
        expected = " or ".join(_TYPE_NAMES[kind] for kind in accepted if kind is not type(None))
        if name == "speed":
            expected += " or max"
        raise ValueError(f"must be {expected}, not {value!r}")
    return value


_TYPE_NAMES = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}


def _plain_types(hint: Any) -> tuple[type, ...]:
    if get_origin(hint) is Literal:
        return (str,)
    return get_args(hint) or (hint,)
