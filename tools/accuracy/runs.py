"""Measured closed-loop runs of real servers: one row of a CSV file each, ours or a user's own."""

from __future__ import annotations

import csv
import gzip
import io
import math
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import get_args

from accuracy.csv_files import write_csv
from llmirage_server.perf.catalogue.dtypes import MoeBackend

MAY_BE_ZERO = (
    "requests", "warmup", "output_tokens_per_s", "drafts", "enable_chunked_prefill", "async_scheduling", "cold_start",
    "enable_mixed_chunk", "allreduce_fusion", "batch_wait_timeout_iters",
)  # fmt: skip
ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data" / "silicon"
REQUIRED = ("engine", "model", "gpu", "isl", "osl", "concurrency", "ttft_ms", "tpot_ms")


class RunsError(ValueError):
    """A file of measured runs cannot be used; `problems` has one sentence for each place in it."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """`concurrency` clients that each send the next request when the last one is answered; what the server needed for it.

    The field names are the columns of the CSV file; those in REQUIRED must be there, an empty cell of any other means its
    default. None: the engine's own default.
    """

    engine: str  # vllm, sglang or trtllm
    model: str
    gpu: str
    isl: int  # tokens of a prompt
    osl: int  # tokens of an answer
    concurrency: int
    ttft_ms: float  # mean over the requests
    tpot_ms: float  # mean over the requests of (latency - TTFT) / (osl - 1)
    id: str = ""
    engine_version: str = ""
    speculation: str = ""  # how the server drafted tokens (mtp, eagle3, ngram), where the measurement says so
    drafts: int = 0  # draft tokens of a step; 0: unknown, or none
    acceptance_length: float | None = None  # tokens that a step with drafts brought on average
    weights: str = "auto"
    kv_cache_dtype: str = "auto"
    tp: int = 1
    pp: int = 1
    dp: int = 1  # attention data parallelism: ranks within the deployment
    ep: int = 1
    shortest: float = 1.0  # lengths are uniform between this share of isl (osl) and all of it
    requests: int = 0  # requests of the whole run; 0: ten for each client
    warmup: int = 0  # requests of each client that were finished before those that count began; not simulated
    cold_start: int = 0  # 1: the mean of TTFT holds what first requests waited for a server that nothing had warmed up
    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    gpu_memory_utilization: float | None = None
    enable_chunked_prefill: int = 1  # 0: only whole prompts
    async_scheduling: int | None = None  # 1: steps are formed one ahead; 0: they are not
    scheduler_recv_interval: int = 1  # SGLang: decoding steps from one look at the arrivals to the next
    output_tokens_per_s: float = 0.0  # of the whole run; 0: not measured
    moe_backend: str = "auto"  # kernels of experts, as Deployment.create has them
    statistic: str = "mean"  # over the requests, of ttft_ms and tpot_ms: mean or median
    topology: str = ""  # of prefill and decode instances, as in P1x(tp4ep1)+D3x(tp8ep8dpa); without: one instance
    stream_interval: int = 1  # tokens that go out together
    settings: str = ""  # where the settings of the engine are known from
    max_prefill_tokens: int | None = None  # SGLang: prompt tokens of one step
    enable_mixed_chunk: int = 0  # SGLang: 1: prompts and decodes share steps
    mxfp4_activations: str = ""  # fp8: experts in mxfp4 multiply activations of 8 bits, by an environment variable of vLLM
    allreduce_fusion: int = 0  # SGLang: 1: all-reduce and norm in one kernel
    batch_wait_timeout_iters: int = 0  # TensorRT-LLM: decoding steps that new prompts wait for more of them
    odd: str = ""  # why the row fits nothing else that was measured; it is kept out of the figures

    @property
    def latency_ms(self) -> float:
        """Measured latency of a request of the nominal length."""
        return request_latency_ms(self.ttft_ms, self.tpot_ms, self.osl)

    @property
    def family(self) -> str:
        """The model's name without its organisation."""
        return self.model.rpartition("/")[2]


def request_latency_ms(ttft_ms: float, tpot_ms: float, osl: int) -> float:
    """Latency of one request of `osl` output tokens."""
    return ttft_ms + (osl - 1) * tpot_ms


def load_runs(path: Path) -> list[MeasuredRun]:
    """Read a CSV file (.gz allowed). Raises RunsError with every problem of the file as `file:line: field: what`."""
    try:
        raw = path.read_bytes()
        text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8-sig")
    except OSError as error:
        raise RunsError([f"{path}: cannot be read: {error.strerror or error}"]) from error
    except UnicodeDecodeError as error:
        raise RunsError([f"{path}: cannot be read: it is not UTF-8 text"]) from error
    reader = csv.DictReader(io.StringIO(text))
    columns = reader.fieldnames or []
    known = [f.name for f in fields(MeasuredRun)]
    problems = [f"{path}:1: {name}: the column is missing" for name in REQUIRED if name not in columns]
    problems += [f"{path}:1: {name}: unknown column; columns: {', '.join(known)}" for name in columns if name not in known]
    if problems:
        raise RunsError(problems)
    runs = []
    for row in reader:
        found = list(_problems(row))
        if found:
            problems += [f"{path}:{reader.line_num}: {problem}" for problem in found]
        else:
            runs.append(_run(row))
    if not runs and not problems:
        problems = [f"{path}: has no rows"]
    if problems:
        raise RunsError(problems)
    return runs


def save_runs(path: Path, runs: Iterable[MeasuredRun]) -> None:
    """Write runs as `load_runs` reads them; gzipped, without a time stamp, where the name ends in .gz."""
    cells = ([f"{v:.6g}" if isinstance(v, float) else "" if v is None else v for v in astuple(run)] for run in runs)
    write_csv(path, [f.name for f in fields(MeasuredRun)], cells)


_KINDS = {f.name: str(f.type).removesuffix(" | None") for f in fields(MeasuredRun)}


def _problems(row: dict[str, str | None]) -> Iterable[str]:
    if None in row or None in row.values():
        yield "the row has more or fewer cells than the header"
        return
    for name, text in row.items():
        cell = (text or "").strip()
        if not cell:
            if name in REQUIRED:
                yield f"{name}: must not be empty"
            continue
        kind = _KINDS[name]
        if kind == "str":
            if name == "engine" and cell not in ("vllm", "sglang", "trtllm"):
                yield f"engine: unknown engine {cell!r}; choices: vllm, sglang, trtllm"
            if name == "moe_backend" and cell not in (choices := get_args(MoeBackend)):
                yield f"moe_backend: must be one of {', '.join(choices)}, not {cell!r}"
            if name == "mxfp4_activations" and cell not in ("bf16", "fp8"):
                yield f"mxfp4_activations: must be bf16 or fp8, not {cell!r}"
            if name == "statistic" and cell not in ("mean", "median"):
                yield f"statistic: must be mean or median, not {cell!r}"
            continue
        try:
            number = float(cell)
        except ValueError:
            yield f"{name}: {cell!r} is not a number"
            continue
        if not math.isfinite(number):
            yield f"{name}: {cell!r} is not finite"
        elif kind == "int" and number != int(number):
            yield f"{name}: {cell!r} is not a whole number"
        elif number < 0 or (number == 0 and name not in MAY_BE_ZERO):
            yield f"{name}: must be above 0, not {cell}"
        elif name in ("shortest", "gpu_memory_utilization") and number > 1:
            yield f"{name}: must be at most 1, not {cell}"


def _run(row: dict[str, str | None]) -> MeasuredRun:
    values: dict[str, str | int | float] = {}
    for name, text in row.items():
        cell = (text or "").strip()
        if cell:
            kind = _KINDS[name]
            values[name] = cell if kind == "str" else int(float(cell)) if kind == "int" else float(cell)
    return MeasuredRun(**values)  # type: ignore[arg-type]
