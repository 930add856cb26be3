"""Load workload files, presets and loads of lengths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from llmirage_client.commands.actions.refusal import refuse
from llmirage_client.settings.workload import FileSettings, WorkloadSettings
from llmirage_client.workload.format_options import parse_pairs
from llmirage_client.workload.registry import load
from llmirage_client.workload.session import Workload, WorkloadError
from llmirage_client.workload.synthesis.generated import is_preset, preset_workload
from llmirage_client.workload.synthetic_load import synthetic_load
from llmirage_shared.settings import ConfigError, instance_of, settings_of
from llmirage_shared.tokens import TokenizerError

_OF_FORMATS = [name for name in settings_of(WorkloadSettings) if name not in ("format", "format_option", "min_turns")]


@contextmanager
def readable() -> Iterator[None]:
    """Turn errors of a workload or its tokenizer into InputRefused."""
    try:
        yield
    except (WorkloadError, TokenizerError) as error:
        refuse([str(error)])


def load_workload(
    file: str | Workload,
    settings: FileSettings,
    conversations: int | None = None,
    *,
    tokenizer: str | None = None,
    seed: int | None = None,
) -> Workload:
    """Load a file, or make the workload of a preset of `generate`; return a loaded workload as it is.

    conversations: the number that the run takes, if it is known. tokenizer, seed: of formats that count or draw.
    Raises WorkloadError, TokenizerError, ConfigError.
    """
    if isinstance(file, Workload):
        return file
    try:
        options = parse_pairs(settings.format_option)
    except ValueError as error:
        raise ConfigError([f"Invalid value for --format-option: {error}"]) from None
    options |= {name: value for name in _OF_FORMATS if (value := getattr(settings, name, None)) is not None}
    if is_preset(file):
        return preset_workload(file, conversations, seed or 0, tokenizer, list(options.items()))
    offered = {"min_turns": settings.min_turns, "tokenizer": tokenizer, "seed": seed, "conversations": conversations}
    return load(file, settings.format, options, offered)


def load_of(file: str | Workload | None, settings: Mapping[str, Any], conversations: int | None) -> Workload:
    """Return the workload of a file, or of lengths. conversations: see load_workload. Raises WorkloadError, ConfigError."""
    if file is not None and settings["input_file"] is not None:
        raise ConfigError(["give WORKLOAD or --input-file, not both"])
    file = file or settings["input_file"]
    if problem := without_file_problem(file, settings):
        raise ConfigError([problem])
    if file is not None:
        of_file = instance_of(WorkloadSettings, settings)
        return load_workload(file, of_file, conversations, tokenizer=settings["tokenizer"], seed=settings["random_seed"])
    counts = settings["request_count"]
    sent = sum(counts) if isinstance(counts, tuple) else counts
    requests = settings["requests"] or sent
    each = settings["requests"] or not isinstance(counts, tuple) or len(counts) == 1  # of a sweep's loads
    return synthetic_load(
        _spread(settings["isl"], settings["isl_stddev"]),
        _spread(settings["osl"], settings["osl_stddev"]),
        requests or 1000,
        turns=settings["turns"],
        wait_s=settings["think_time"],
        shared_prefix_tokens=settings["shared_prefix"],
        sessions=None if requests else conversations,
        loads=_loads(settings) if each and (requests or conversations is None) else 1,
        seed=settings["random_seed"],
    )


def _loads(settings: Mapping[str, Any]) -> int:
    """How many loads are asked for: several of a sweep, else one."""
    given = (settings[name] for name in ("concurrency", "request_rate"))
    return max(len(values) if isinstance(values, tuple) else 1 for values in given)


def _spread(length: str, stddev: float) -> str:
    return f"normal(mean={length}, std={stddev:g}, min=1)" if stddev else length


# Options of a load without a file, and what stands for not given.
_LENGTHS: Mapping[str, Any] = {
    "isl": None, "osl": None, "isl_stddev": 0, "osl_stddev": 0, "requests": None, "turns": "1", "think_time": "0",
    "shared_prefix": 0,
}  # fmt: skip


def without_file_problem(file: str | Workload | None, settings: Mapping[str, Any]) -> str | None:
    """Return the problem of a load that is neither a file nor lengths, or both; None if there is none."""
    given = [name for name, unset in _LENGTHS.items() if settings.get(name, unset) not in (unset, None)]
    if file is not None:
        flag = f"--{given[0].replace('_', '-')}" if given else ""
        return f"{flag} describes a load without a file: give it or WORKLOAD, not both" if given else None
    if not {"isl", "osl"} <= set(given):
        return "give a workload (a file, bundled:NAME or a preset), or --isl and --osl"
    if "think_time" in given and "turns" not in given:
        return "--think-time is the pause between requests of a session: give --turns, which is 1"
    return None
