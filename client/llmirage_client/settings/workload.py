"""Settings of workload files, of loads that need no file, and of the commands that inspect, convert and generate files."""

# ruff: noqa: RUF009  what declares a setting is dataclasses.field with a fixed form of metadata

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import MISSING, dataclass
from functools import partial
from typing import Any

from llmirage_shared.command_line import OPTIONS
from llmirage_shared.settings import cannot_be_file, setting, under


def _number_or_text(value: Any) -> float | str:
    """Return a number or the text of a distribution. Raises ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"must be a number or a distribution, not {value!r}")
    return value


WORKLOAD, LENGTHS = "Workload", "Load without a file"
_workload, _lengths = under(WORKLOAD), under(LENGTHS)
_length = partial(_lengths, read=_number_or_text)
_batch = partial(_workload, None, least=0, unset="1")


@dataclass(frozen=True, kw_only=True)
class FileSettings:
    """Settings of every command that reads a workload file."""

    format: str | None = _workload(
        None,
        "Format of the file; `llmirage catalog formats` lists them.",
        aliases=("custom_dataset_type",),
        metavar="FORMAT",
        unset="detected from the content",
        study=True,
        usual="run",
        flag=True,
    )
    format_option: tuple[str, ...] = _workload(
        (),
        "Option of the file's format; `llmirage catalog formats --json` lists them; may be repeated.",
        aliases=("multi_turn_args", "dataset_args"),
        metavar="KEY=VALUE|JSON",
        flag=True,
    )
    min_turns: int | None = _workload(
        None, "Fewest turns of a conversation, if the format draws their number.", least=1, carried=True
    )
    max_turns: int | None = _workload(None, "Use only the first N turns of a conversation.", least=1, carried=True)
    dataset_offset: int | None = _workload(None, "Skip the first N conversations of the file.", least=0, carried=True)
    isl_block_size: int | None = _workload(
        None,
        "Tokens that a hash of a prompt's block stands for.",
        aliases=("prompt_input_tokens_block_size", "synthetic_input_tokens_block_size"),
        option="block_size",
        least=1,
        carried=True,
    )
    max_context_length: int | None = _workload(
        None, "Leave out traces with a longer prompt and reply, in tokens.", least=1, carried=True
    )
    num_dataset_entries: int | None = _workload(
        None, "Use only the first N conversations of the file.", least=1, carried=True
    )
    think_time_only: bool | None = _workload(
        None, "Wait a trace's think times instead of its pauses.", aliases=("use_think_time_only",), carried=True
    )


def _shares(value: Any) -> tuple[tuple[int, float], ...]:
    """Return each PRIORITY:SHARE as a pair. Raises ValueError."""
    found: dict[int, float] = {}
    for part in value.split(",") if isinstance(value, str) else value:
        priority, colon, share = part.partition(":") if isinstance(part, str) else (part[0], ":", part[1])
        if not colon or not 0 < float(share) < float("inf") or int(priority) in found:
            raise ValueError(f"{part!r} is not PRIORITY:SHARE, such as 0:0.8, each priority once")
        found[int(priority)] = float(share)
    return tuple(found.items())


@dataclass(frozen=True, kw_only=True)
class WorkloadSettings(FileSettings):
    """Settings of a workload that is sent."""

    priorities: tuple[tuple[int, float], ...] | None = _workload(
        None,
        "Draw the priority of each conversation, as 0:0.8,10:0.2 in these shares; lower numbers are served first by engines "
        "with schedule_policy=priority.",
        metavar="PRIORITY:SHARE,...",
        read=_shares,
        unset="the file's",
        carried=True,
    )
    batch_size_text: int | None = _batch(
        "Texts per request of a random_pool.", aliases=("prompt_batch_size", "batch_size"), carried=True
    )
    batch_size_image: int | None = _batch(
        "Images per request of a random_pool.", spelled="image-batch-size", aliases=("batch_size_image",), carried=True
    )
    batch_size_audio: int | None = _batch(
        "Audio clips per request of a random_pool.", spelled="audio-batch-size", aliases=("batch_size_audio",), carried=True
    )
    batch_size_video: int | None = _batch(
        "Videos per request of a random_pool.", spelled="video-batch-size", aliases=("batch_size_video",), carried=True
    )


@dataclass(frozen=True, kw_only=True)
class LengthSettings:
    """A load of lengths alone. isl, osl, turns, think_time: a number, or the text of a distribution."""

    isl: float | str | None = _length(
        None,
        "Input tokens per request: 1000, 800:1200 or 'lognormal(p50=900, p95=4000)'.",
        aliases=("synthetic_input_tokens_mean", "prompt_input_tokens_mean"),
        metavar="N|DIST",
        study=True,
        usual=True,
    )
    osl: float | str | None = _length(
        None,
        "Output tokens per request, in the same forms.",
        aliases=("output_tokens_mean", "prompt_output_tokens_mean"),
        metavar="N|DIST",
        study=True,
        usual=True,
    )
    isl_stddev: float = _lengths(
        0.0,
        "Draw --isl from a normal distribution of this deviation.",
        aliases=("synthetic_input_tokens_stddev", "prompt_input_tokens_stddev"),
        least=0,
        carried=True,
    )
    osl_stddev: float = _lengths(
        0.0, "Likewise --osl.", aliases=("output_tokens_stddev", "prompt_output_tokens_stddev"), least=0, carried=True
    )
    requests: int | None = _lengths(
        None, "Number of requests; of a sweep, of each load.", least=1, study=True, unset="1000", usual=True
    )
    turns: float | str = _length(
        "1",
        "Requests per session; each continues the previous one with --isl new tokens.",
        aliases=("session_turns_mean", "conversation_turn_mean"),
        metavar="N|DIST",
        study=True,
        flag=True,
    )
    think_time: float | str = _length(
        "0", "Seconds between a reply and the session's next request.", metavar="S|DIST", study=True, flag=True
    )
    shared_prefix: int = _lengths(
        0,
        "Tokens that every session starts with, before those of --isl.",
        aliases=("shared_system_prompt_length", "prefix_prompt_length", "prompt_prefix_length"),
        least=0,
        study=True,
        flag=True,
    )
    input_file: str | None = _lengths(None, "Workload file, instead of the argument.", metavar="FILE", carried=True)


@dataclass(frozen=True, kw_only=True)
class InspectSettings(FileSettings):
    """Settings of the statistics of a workload."""

    tokenizer: str | None = setting(
        None, OPTIONS, "Folder or Hugging Face name of the tokenizer that counts.", unset="the built-in one"
    )
    reply_tokens: int = setting(200, OPTIONS, "Reply length if the file does not give one.", least=0)


@dataclass(frozen=True, kw_only=True)
class ConvertSettings(FileSettings):
    """Settings of a conversion to another format."""

    to: str = setting(MISSING, OPTIONS, "Format to write.", metavar="FORMAT")
    tokenizer: str | None = setting(
        None,
        OPTIONS,
        "Folder or Hugging Face name of the tokenizer for texts given by length, if the other format has no lengths.",
        unset="the built-in one",
    )
    random_seed: int = setting(0, OPTIONS, "Seed of texts generated from lengths.")


Changes = tuple[tuple[str, Any], ...]


def _changes(texts: Iterable[str]) -> Changes:
    """Return each NAME=VALUE as a pair. Raises ValueError."""
    changes = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise ValueError(f"{text!r} is not NAME=VALUE, such as turns.mean=12")
        changes.append((name.strip().replace("-", "_"), value.strip()))
    return tuple(changes)


@dataclass(frozen=True, kw_only=True)
class GenerateSettings:
    """Settings of a generated workload. set: names of parameters and their values."""

    to: str | None = setting(None, OPTIONS, "Format to write.", metavar="FORMAT", unset="the preset's")
    set: Changes = setting(
        (),
        OPTIONS,
        "Change a parameter: turns.mean=12, output=40:160, 'input=lognormal(p50=200, p95=1500)'; may be repeated.",
        metavar="NAME=VALUE",
        read=_changes,
    )
    conversations: int | None = setting(None, OPTIONS, "Short for --set conversations=N.", aliases=("sessions",), least=1)
    rate: float | None = setting(
        None,
        OPTIONS,
        "Short for --set arrivals.rate_per_s; Poisson arrivals if the preset has none.",
        metavar="PER_S",
        above=0,
    )
    tokenizer: str | None = setting(
        None,
        OPTIONS,
        "Folder or Hugging Face name of the tokenizer that lengths refer to.",
        unset="the built-in one, which `llmirage serve` uses",
    )
    token_ids: bool = setting(
        True, OPTIONS, "For agentic_jsonl: write token ids, so that shared prefixes stay shared; otherwise only counts."
    )
    random_seed: int = setting(0, OPTIONS, "Seed; the same seed and options write the same file.")


class MadeFile:
    """Output of the commands that write a workload file."""

    output: str | None = setting(
        None,
        OPTIONS,
        "File to write; compressed if it ends in .gz.",
        short="o",
        metavar="FILE",
        check=cannot_be_file,
        unset="standard output",
    )
