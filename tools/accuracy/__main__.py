"""How far off is the model? Writes docs/accuracy.md, or judges measured runs of your own.

Run it:  make accuracy                      from the measurements in tests/data/silicon
         make accuracy DATA=folder          from the full tables (silicon_dev.csv, ops/, vllm_runs/)
         make accuracy RUNS=my.csv          your own runs: prints what the engine says of each, and the errors;
                                            ARGS=--brief: the errors alone, EACH=4: of so many runs of each group
         make accuracy ARGS=--kept          the page from the predictions of whole runs that are kept: simulates nothing
                                            but what --parts names
         make accuracy ARGS=--constants     what each constant of the host side rests on, and the errors with and without it
         make accuracy CHECK=1              writes nothing; fails where a group of runs lost 2 points and a tenth of its
                                            error against the committed page; EACH=4 checks so many runs of each group
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from accuracy.check import lost, sample
from accuracy.closed_loop import Prediction, predict_all
from accuracy.constants import constants_table
from accuracy.document import PARTS, write_document, write_whole_runs
from accuracy.reduce import reduce_truth
from accuracy.report import group_of, run_table, table, totals
from accuracy.runs import DATA, REQUIRED, ROOT, RunsError, load_runs
from accuracy.saved import load_predictions
from accuracy.truth import put_right


def main() -> int:
    """Return 0; 1 for accuracy that was lost; 2 for files that cannot be used."""
    parser = argparse.ArgumentParser(
        prog="accuracy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, help="folder of full tables; default: the reduced ones of the repository")
    parser.add_argument("--runs", type=Path, help=f"CSV of measured runs; columns at least {', '.join(REQUIRED)}")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "accuracy.md")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--sample", type=int, default=6, help="comparisons beside the main one use every so many-th run")
    parser.add_argument("--check", action="store_true", help="compare with the committed page, and write nothing")
    parser.add_argument("--each", type=int, help="runs of each model, GPU and engine; default: all")
    parser.add_argument("--kept", action="store_true", help="write the parts of the page that kept predictions give")
    parser.add_argument("--parts", nargs="+", default=(), choices=PARTS, help="with --kept: other parts, simulated anew")
    parser.add_argument("--constants", action="store_true", help="print the support of each constant of the host side")
    parser.add_argument("--brief", action="store_true", help="with --runs: print the errors by group alone")
    arguments = parser.parse_args()
    try:
        if arguments.constants:
            runs = [run for name in ("scripted.csv.gz", "first_tokens.csv") for run in load_runs(DATA / name) if not run.odd]
            print(constants_table(sample(runs, arguments.each) if arguments.each else runs, arguments.processes))
            return 0
        if arguments.kept:
            write_whole_runs(arguments.out, DATA, arguments.parts, arguments.processes, arguments.sample)
            return 0
        if arguments.check:
            return _check(arguments.each, arguments.processes)
        if arguments.runs:
            labelled = load_runs(arguments.runs)
            runs = [put_right(run) for run in labelled]
            if changed := sum(run != before for run, before in zip(runs, labelled, strict=True)):
                print(f"note: {changed} runs are simulated with the parallelism of their scripts instead of their labels'")
            chosen = sample(runs, arguments.each) if arguments.each else runs
            _judge(predict_all(chosen, processes=arguments.processes), arguments.brief)
        elif arguments.data:
            with tempfile.TemporaryDirectory() as folder:
                reduce_truth(arguments.data, Path(folder))
                write_document(arguments.out, Path(folder), arguments.data / "ops", arguments.processes, arguments.sample)
        else:
            write_document(arguments.out, DATA, DATA / "ops", arguments.processes, arguments.sample)
    except RunsError as error:
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"error: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2
    return 0


def _check(each: int | None, processes: int) -> int:
    runs = load_runs(DATA / "runs.csv.gz")
    chosen = sample(runs, each) if each else runs
    problems = lost(load_predictions(DATA / "predictions.csv.gz", chosen), predict_all(chosen, processes=processes))
    for problem in problems:
        print(f"accuracy: {problem}", file=sys.stderr)
    print(
        f"{len(chosen)} measured runs: {f'{len(problems)} groups lost accuracy' if problems else 'no group lost accuracy'}"
    )
    return 1 if problems else 0


def _judge(predictions: list[Prediction], brief: bool) -> None:
    """Print what the engine says of each run (not if brief), and the errors by group, of runs that are not odd."""
    rows = []
    for i, p in enumerate(predictions, 1):
        run, name = p.run, p.run.id or f"run {i}"
        if p.problem:
            print(f"{name}: no prediction: {p.problem}", file=sys.stderr)
            continue
        figures = [f"{getattr(run, m):.1f} / {getattr(p, m):.1f}" for m in ("ttft_ms", "tpot_ms", "latency_ms")]
        rows.append([name, *figures, f"{p.error('latency') * 100:+.1f} %"])
    if not brief:
        print(table(["run", "TTFT, measured / ours (ms)", "TPOT (ms)", "latency (ms)", "latency error"], rows))
    usable = [p for p in predictions if not p.problem and not p.run.odd]
    if usable:
        print(
            f"\nErrors in percent, median / p90 of the absolute error; bias above 0: we are too slow.\n\n{totals(usable)}\n"
        )
        print(run_table(usable, "group", group_of))


if __name__ == "__main__":
    sys.exit(main())
