"""Compares `size --day` with a trace of the day that is simulated whole, with an autoscaler.

Run it from tests/benchmarks:  python -m sizing.day

The hourly answer knows each hour's rate; the autoscaler sees arrivals, which are Poisson within an hour, and starts and
stops instances of the same shape, at the rate per instance that the static answer carries.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from click.testing import CliRunner

from llmirage_client.cli import main as llmirage
from llmirage_client.workload.rates import SHAPES

OFFICE = [3.0 * share for share in SHAPES["office-hours"]]
_MODEL = ("--model", "meta-llama/Llama-3.1-70B-Instruct", "--weights", "fp8")
_SLO, _GOODPUT = "ttft_p95<1s, tpot_p95<13ms", "ttft:1000 tpot:13"
_INTERVAL_S = 60.0  # between two decisions: a shorter one sees little but noise


class Found(NamedTuple):
    """A day's GPU-hours, the share of requests within the objectives, and instances in each hour or on average."""

    gpu_hours: float
    goodput: float
    instances: Sequence[float]


def write_trace(path: Path, rates: Sequence[float], seed: int) -> int:
    """Write requests at these rates, an hour each; return their number."""
    rng, lines = np.random.default_rng(seed), list[str]()
    for hour, rate in enumerate(rates):
        for second in np.sort(rng.random(rng.poisson(rate * 3600))) * 3600:
            row = {"input_toks": int(rng.integers(1500, 2500)), "output_toks": int(rng.integers(1000, 1600))}
            lines.append(json.dumps({"arrival_time_ns": int((hour * 3600 + second) * 1e9), **row}))
    path.write_text("\n".join(lines) + "\n")
    return len(lines)


def by_hours_and_whole(trace: Path) -> tuple[Found, Found]:
    said = _said(
        "size", "--day", str(trace), *_MODEL, "--gpus", "h100_sxm", "--engines", "vllm", "--tps", "4", "--slo", _SLO
    )
    plan, hours = said["autoscaled"], said["hours"]
    rate = max(hour["rate"] for hour in hours) / hours[0]["static_instances"]
    scaling = {
        "scale_on_rate": rate,
        "min_instances": 1,
        "start_up_s": plan["cold_start_s"],
        "scale_interval_s": _INTERVAL_S,
    }
    cluster = ["--gpu", "h100_sxm", "--engine", "vllm", "--tp", "4", "--instances", str(max(plan["instances"]))]
    settings = [word for name, value in scaling.items() for word in ("--set", f"{name}={value}")]
    run = _said("simulate", str(trace), "--fixed-schedule", *_MODEL, *cluster, *settings, "--goodput", _GOODPUT)
    goodput = run["goodput_per_s"] * run["duration_s"] / run["requests"]
    return (
        Found(plan["gpu_hours"], plan["goodput"]["all"], plan["instances"]),
        Found(run["gpu_hours"], goodput, [run["instances_ready"]]),
    )


def _said(*words: str) -> dict[str, Any]:
    done = CliRunner().invoke(llmirage, [*words, "--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "day.jsonl"
        print(f"{write_trace(path, OFFICE, 1):,} requests")
        hourly, whole = by_hours_and_whole(path)
    for name, one in (("by hours", hourly), ("whole", whole)):
        print(f"{name:10}{one.gpu_hours:8.1f} GPU-hours, {one.goodput:.2%} within the objectives, {one.instances}")
    print(f"whole is {whole.gpu_hours / hourly.gpu_hours - 1:+.1%}")


if __name__ == "__main__":
    main()
