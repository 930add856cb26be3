"""Compares TTFT and ITL of live runs with virtual time: what the machine adds at a speed.

Run it from tests/benchmarks:  python -m pacing [--speed N ...] [--rounds N] [--before TREE] [--prefix "chrt -f 10"]

It is no test of CI: the figures are those of the machine, and of what else runs on it. Each round starts `llmirage serve
--speed N`, sends the workload with `llmirage run` and stops the server. The table has the median of the rounds.
--before: the root of another checkout, whose rounds alternate with those of this one. --prefix: a command before both
processes, such as a priority that keeps them from waiting for others on a busy machine.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parents[3]
FIGURES = (
    ("time_to_first_token", "p50", "TTFT p50"),
    ("time_to_first_token", "p90", "TTFT p90"),
    ("time_to_first_token", "p99", "TTFT p99"),
    ("inter_token_latency", "p50", "ITL p50"),
    ("inter_chunk_latency", "p99", "gap p99"),
)
Figures = dict[str, float]


def environment(tree: Path) -> dict[str, str]:
    """That of a process which runs the code of that checkout."""
    path = os.pathsep.join(str(tree / side) for side in ("server", "client", "shared"))
    return {**os.environ, "PYTHONPATH": path}


@contextmanager
def server(tree: Path, speed: float, prefix: Sequence[str]) -> Iterator[str]:
    """Its URL. The first request does not wait for the tokenizer to load."""
    command = [*prefix, sys.executable, "-m", "llmirage", "serve", "--port", "0", "--speed", f"{speed:g}"]
    process = subprocess.Popen(command, env=environment(tree), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if found := re.search(r"http://\S+/v1$", line):
                yield found.group()
                return
        raise RuntimeError("the server did not start")
    finally:
        process.terminate()
        process.communicate()


def figures_in(folder: Path) -> Figures:
    """Those of a run, ms of cluster time."""
    summary = json.loads((folder / "profile_export_aiperf.json").read_text())
    return {name: float(summary[tag][percentile]) for tag, percentile, name in FIGURES}


def live(tree: Path, workload: str, speed: float, prefix: Sequence[str]) -> Figures:
    """The figures of one live run."""
    with server(tree, speed, prefix) as url, tempfile.TemporaryDirectory() as folder:
        run = [*prefix, sys.executable, "-m", "llmirage", "run", workload, "--url", url, "--speed", f"{speed:g}"]
        warm_up = ["--warmup-request-count", "1"]
        done = subprocess.run(
            [*run, *warm_up, "--artifact-dir", f"{folder}/run"], env=environment(tree), capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        return figures_in(Path(folder, "run"))


def virtual(workload: str) -> Figures:
    """The same in virtual time."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "llmirage", "simulate", workload, "--artifact-dir", f"{folder}/run"]
        subprocess.run(command, env=environment(HERE), stdout=subprocess.DEVNULL, check=True)
        return figures_in(Path(folder, "run"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", default="bundled:coding-agent-team")
    parser.add_argument("--speed", type=float, nargs="*", default=[10.0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--before", type=Path)
    parser.add_argument("--prefix", type=str.split, default=[])
    asked = parser.parse_args()
    trees = {"before": asked.before.resolve()} if asked.before else {}
    trees["now"] = HERE
    exact = virtual(asked.workload)
    for speed in asked.speed:
        rounds: dict[str, list[Figures]] = {name: [] for name in trees}
        for _ in range(asked.rounds):
            for name, tree in trees.items():
                rounds[name].append(live(tree, asked.workload, speed, asked.prefix))
        print(f"{asked.workload}, speed {speed:g}, ms of cluster time, median of {asked.rounds}")
        print(f"{'':10} {'virtual':>9}" + "".join(f" {name:>9} {'off':>6}" for name in trees))
        for figure, value in exact.items():
            found = [statistics.median([one[figure] for one in rounds[name]]) for name in trees]
            print(f"{figure:10} {value:9.2f}" + "".join(f" {one:9.2f} {one / value - 1:+6.0%}" for one in found), flush=True)


if __name__ == "__main__":
    main()
