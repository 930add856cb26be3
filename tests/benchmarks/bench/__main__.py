"""Measure the CPU cost of the hot paths and compare it with the baseline: `make bench`.

    make bench                               # all of them, some minutes; exit status 1 when one is slower
    make bench ARGS="simulate client_json"   # those whose names begin so
    make bench ARGS=--update                 # write the baseline anew
    make bench ARGS=--list                   # what they are

Every measurement is a process of its own, and the rounds go over all measurements, so that no layout of memory and no busy
minute decides. A ratio is a cost in passes of a calibration loop that runs before and after it (calibration.py); what is
compared is the median of all repetitions. What comes out slower is measured once more before it counts.

Builds with compiled modules (`make compile`) and other versions of Python have baselines of their own. To compare two states
of the code on one machine, write a baseline of the first (ARGS="--update --baseline /tmp/before.json") and read it with the
second (ARGS="--baseline /tmp/before.json").

Exit status: 0 nothing is slower; 1 something is, or has no baseline, or is no longer measured, or exceeds its limit; 2 the
baseline knows nothing of this build, or a name is unknown.
"""

import argparse
import importlib
import json
import math
import os
import platform
import subprocess
import sys
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import NoReturn

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from bench.comparison import Baseline, Comparison, Figure, compare, figure_of, read_baseline, table, write_baseline
from bench.measurement import LIMITS, MEASUREMENTS, Repetition, repetitions
from llmirage_shared.compiled import compiled_sources, complaint

GROUPS = ("simulate", "engine", "server", "client", "start", "library")  # the modules beside this one that have measurements
BASELINE = Path(__file__).parents[1] / "baseline.json"
ROUNDS = 3
IN_A_ROUND = 3
TRIES = 3  # of a figure with a fixed bound: other load on the machine can only make it larger
MEANINGS = {
    "slower": "slower than the baseline by more than allowed",
    "new": "without a baseline (ARGS=--update measures it)",
    "missing": "in the baseline, but no longer measured (ARGS=--update removes it)",
}


def build() -> str:
    """What is measured: ratios of different builds have nothing to do with each other."""
    version = f"{platform.python_implementation()} {sys.version_info.major}.{sys.version_info.minor}"
    return f"{version}, {'compiled' if compiled_sources() else 'sources'}"


def machine() -> str:
    """The processor and the system, for people."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        name = platform.processor() or platform.machine()
    return f"{name}, {platform.system()}"


def measure(names: list[str], found: dict[str, list[Repetition]]) -> None:
    """Add the repetitions of all rounds, each in a new process."""
    for number in range(ROUNDS):
        for place, name in enumerate(names, 1):
            if sys.stderr.isatty():
                print(f"\r\033[Kround {number + 1} of {ROUNDS}, {place} of {len(names)}: {name}", end="", file=sys.stderr)
            found[name] += [Repetition(**each) for each in json.loads(output_of(name))]
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)


def output_of(name: str) -> str:
    """The last line that the process of one measurement prints."""
    done = subprocess.run([sys.executable, "-m", "bench", "--one", name], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"bench: {name} failed, see above")
    return done.stdout.splitlines()[-1]


def chosen(beginnings: list[str]) -> tuple[list[str], list[str]]:
    """Names of measurements and of limits that begin with one of these; all if none is given."""
    known = [*MEASUREMENTS, *LIMITS]
    if unknown := [each for each in beginnings if not any(name.startswith(each) for name in known)]:
        refuse(f"nothing begins with {', '.join(unknown)}: --list names what there is")
    names = [name for name in known if not beginnings or name.startswith(tuple(beginnings))]
    return [name for name in names if name in MEASUREMENTS], [name for name in names if name in LIMITS]


def refuse(said: str) -> NoReturn:
    print(f"bench: {said}", file=sys.stderr)
    sys.exit(2)


def judged(names: list[str], baseline: dict[str, Figure], again: bool) -> list[Comparison]:
    """again: what comes out slower is measured once more, and all its repetitions count."""
    found: dict[str, list[Repetition]] = defaultdict(list)
    measure(names, found)
    while True:
        figures = {name: figure_of(each) for name, each in found.items()}
        compared = compare(figures, baseline, whole=len(names) == len(MEASUREMENTS))
        slower = [each.name for each in compared if each.verdict == "slower"]
        if not again or not slower:
            return compared
        print(f"slower at first sight, measured again: {', '.join(slower)}", flush=True)
        measure(slower, found)
        again = False


def show(compared: list[Comparison]) -> None:
    for line in table(compared, {name: each.unit for name, each in MEASUREMENTS.items()}):
        print(line)
    figures = {each.name: each.now for each in compared}
    for name, now in figures.items():
        other = figures.get(MEASUREMENTS[name].beside or "") if name in MEASUREMENTS else None
        if now and other:
            print(f"{name} costs {now.ratio / other.ratio:.2f} times {MEASUREMENTS[name].beside}")


def beyond_limits(names: list[str]) -> bool:
    """Shows figures that have a fixed bound; whether one exceeds it."""
    beyond = False
    for name in names:
        limit = LIMITS[name]
        value = math.inf
        for _ in range(TRIES):
            value = min(value, float(output_of(name)))
            if value <= limit.at_most:
                break
        exceeds = value > limit.at_most
        beyond |= exceeds
        verdict = "  too much" if exceeds else ""
        print(f"{name:<26}{f'{value:.3g} {limit.unit}':>20}   at most {limit.at_most:g}{verdict}", flush=True)
    return beyond


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="measurements whose names begin so; all if none is given")
    parser.add_argument("--update", action="store_true", help="write what is measured into the baseline")
    parser.add_argument("--baseline", type=Path, default=BASELINE, metavar="FILE", help="instead of the committed one")
    parser.add_argument("--list", action="store_true", help="say what the measurements are")
    parser.add_argument("--one", metavar="NAME", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if said := complaint():
        refuse(said)
    groups = [given.one.partition("_")[0]] if given.one else GROUPS
    for group in groups:
        importlib.import_module(f"bench.{group}")
    if given.one in LIMITS:
        print(LIMITS[given.one].value())
        return 0
    if given.one:
        print(json.dumps([asdict(each) for each in repetitions(MEASUREMENTS[given.one], IN_A_ROUND)]))
        return 0
    names, limited = chosen(given.names)
    if given.list:
        for name in (*names, *limited):
            print(f"{name:<30}{' '.join((MEASUREMENTS.get(name) or LIMITS[name]).about.split())}")
        return 0
    return run(names, limited, given.baseline, given.update)


def run(names: list[str], limited: list[str], path: Path, update: bool) -> int:
    """Measure, show, and compare or write; return the exit status."""
    print(f"{build()}; {machine()}", flush=True)
    baseline = read_baseline(path, build())
    if baseline is None:
        if not update:
            refuse(f"{path.name} has no figures of this build: ARGS=--update measures them")
        baseline = Baseline(machine(), {})
    if baseline.machine != machine():
        print(f"the baseline is of {baseline.machine}: ratios may differ for that reason alone")
    compared = judged(names, baseline.figures, again=not update)
    show(compared)
    beyond = beyond_limits(limited)
    if update:
        found = {each.name: each.now for each in compared if each.now}
        write_baseline(path, build(), machine(), found, whole=len(names) == len(MEASUREMENTS))
        print(f"written to {path}")
        return int(beyond)
    failed = [each for each in compared if each.fails]
    for verdict, meaning in MEANINGS.items():
        if those := [each.name for each in failed if each.verdict == verdict]:
            print(f"{meaning}: {', '.join(those)}")
    return int(bool(failed) or beyond)


if __name__ == "__main__":
    sys.exit(main())
