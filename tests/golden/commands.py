"""The command line as a witness: what `llmirage simulate` prints as JSON, and the records that it writes.

Only what users have is used: the command's options, its output, and the lines of profile_export.jsonl.
"""

import json
import math
import tempfile
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from stored import Row

from llmirage_client.cli import main

LLAMA = ["--model", "llama-3.1-8b", "--gpu", "h100_sxm", "--weights", "fp8"]
COMMANDS: dict[str, list[str]] = {
    "lengths": [
        *["--isl", "50:400", "--osl", "5:40", "--requests", "50", "--turns", "1:4", "--think-time", "0.2", *LLAMA],
        *["--concurrency", "6", "--instances", "3", "--router", "kv_aware", "--random-seed", "3"],
    ],
    "rounds": [
        *["bundled:dag-rounds", "--no-vary", "--concurrency", "2", "--num-conversations", "3"],
        *["--warmup-request-count", "3"],
        *[*LLAMA, "--instances", "2", "--engine", "sglang", "--schedule-policy", "lpm", "--random-seed", "5"],
    ],
    "team": [
        *["bundled:dag-agent-team", "--no-vary", "--request-rate", "3", "--num-conversations", "3", "--request-count", "30"],
        *[*LLAMA, "--instances", "2", "--engine", "trtllm", "--random-seed", "1", "--goodput", "time_to_first_token:14"],
    ],
    "schedule": [
        *["bundled:mixed-flat-agentic", "--fixed-schedule", *LLAMA, "--instances", "2", "--engine", "vllm"],
        *["--num-gpu-blocks-override", "200", "--max-model-len", "3000", "--max-num-batched-tokens", "512"],
    ],
}
# Keys of the summary that are not kept: words, what needs a longer run, error bands of the performance model.
_LEFT_OUT = ("assumed", "notes", "repeats", "steady_state", "offered_per_s", "delivered_per_s", "shortfall_allowed", "bands")
_NEAR = 1e-9  # relative: sums over many requests may be added up in another order on another machine
_NEAR_NS = 2000  # absolute times are wall-clock times, and double precision has 240 ns there


def play_command(name: str) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        words = ["simulate", *COMMANDS[name], "--json", "--set", "records=true", "--artifact-dir", folder]
        result = CliRunner().invoke(main, words)
        lines = (Path(folder) / "profile_export.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    origin_ns = min(record["metadata"]["request_start_ns"] for record in records)
    return {
        "name": name,
        "exit_code": result.exit_code,
        "summary": {name: value for name, value in json.loads(result.stdout).items() if name not in _LEFT_OUT},
        "records": [_told(record, origin_ns) for record in records],
    }


def _told(record: Row, origin_ns: int) -> Row:
    """Without wall-clock times, and without the units of metrics."""
    metadata = {
        key: value - origin_ns if key.endswith("_ns") and value is not None else value
        for key, value in record["metadata"].items()
    }
    return {**record, "metadata": metadata, "metrics": {tag: each["value"] for tag, each in record["metrics"].items()}}


def unlike(expected: Any, found: Any, place: str = "") -> list[str]:
    """Where two outcomes of a command differ."""
    if isinstance(expected, dict) and isinstance(found, dict):
        keys = {**expected, **found}
        return [line for key in keys for line in unlike(expected.get(key), found.get(key), f"{place}.{key}")]
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = enumerate(zip(expected, found, strict=True))
        return [line for i, (a, b) in pairs for line in unlike(a, b, f"{place}[{i}]")]
    if place.endswith("_ns") and isinstance(expected, int) and isinstance(found, int):
        same = abs(expected - found) <= _NEAR_NS
    elif isinstance(expected, float) and isinstance(found, float):
        same = math.isclose(expected, found, rel_tol=_NEAR)
    else:
        same = expected == found
    return [] if same else [f"{place}: {found!r} instead of {expected!r}"]
