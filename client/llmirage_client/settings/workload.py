"""How a workload file is read, and loads that need no file."""

from __future__ import annotations

from functools import partial
from typing import Any

from llmirage_client.load.request_options import WORKLOAD
from llmirage_shared.settings import under

LENGTHS = "Load without a file"
_workload, _lengths = under(WORKLOAD), under(LENGTHS)
_batch = partial(_workload, None, least=0, unset="1")


class FileSettings:
    """What every command that reads a workload file knows."""

    format: str | None = _workload(
        None,
        "Format of the file; `llmirage catalog formats` lists them.",
        aliases=("custom_dataset_type",),
        metavar="FORMAT",
        unset="detected from the content",
        study=True,
        usual="run",
    )
    format_option: tuple[str, ...] = _workload(
        (),
        "Option of the file's format; `llmirage catalog formats --json` lists them; may be repeated.",
        aliases=("multi_turn_args", "dataset_args"),
        metavar="KEY=VALUE|JSON",
    )
    min_turns: int | None = _workload(None, "Fewest turns of a conversation, if the format draws their number.", least=1)
    max_turns: int | None = _workload(None, "Use only the first N turns of a conversation.", least=1)
    dataset_offset: int | None = _workload(None, "Skip the first N conversations of the file.", least=0)


class WorkloadSettings(FileSettings):
    """What a run knows besides."""

    batch_size_text: int | None = _batch("Texts per request of a random_pool.", aliases=("prompt_batch_size",))
    batch_size_image: int | None = _batch(
        "Images per request of a random_pool.", flag="image-batch-size", aliases=("batch_size_image",)
    )
    batch_size_audio: int | None = _batch(
        "Audio clips per request of a random_pool.", flag="audio-batch-size", aliases=("batch_size_audio",)
    )
    batch_size_video: int | None = _batch(
        "Videos per request of a random_pool.", flag="video-batch-size", aliases=("batch_size_video",)
    )


class LengthSettings:
    """A load of lengths alone. isl, osl, turns, think_time: a number, or the text of a distribution."""

    isl: Any = _lengths(
        None,
        "Input tokens per request: 1000, 800:1200 or 'lognormal(p50=900, p95=4000)'.",
        aliases=("synthetic_input_tokens_mean",),
        metavar="N|DIST",
        study=True,
        usual=True,
    )
    osl: Any = _lengths(
        None,
        "Output tokens per request, in the same forms.",
        aliases=("output_tokens_mean",),
        metavar="N|DIST",
        study=True,
        usual=True,
    )
    isl_stddev: float = _lengths(
        0.0, "Draw --isl from a normal distribution of this deviation.", aliases=("synthetic_input_tokens_stddev",), least=0
    )
    osl_stddev: float = _lengths(0.0, "Likewise --osl.", aliases=("output_tokens_stddev",), least=0)
    requests: int | None = _lengths(
        None, "Number of requests; of a sweep, of each load.", least=1, study=True, unset="1000", usual=True
    )
    turns: Any = _lengths(
        "1",
        "Requests per session; each continues the previous one with --isl new tokens.",
        aliases=("session_turns_mean",),
        metavar="N|DIST",
        study=True,
    )
    think_time: Any = _lengths("0", "Seconds between a reply and the session's next request.", metavar="S|DIST", study=True)
    shared_prefix: int = _lengths(
        0,
        "Tokens that every session starts with, before those of --isl.",
        aliases=("shared_system_prompt_length", "prefix_prompt_length"),
        least=0,
        study=True,
    )
    input_file: str | None = _lengths(None, "Workload file, instead of the argument.", metavar="FILE")
