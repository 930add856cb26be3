"""Fits the constants of the kernels to op tables, and says how far off the kernels then are.

Run it:  python tests/benchmarks/fit_ops.py FOLDER... [--gpu h100_sxm ...] [--op gemm ...] [--leave-one-out] [--write]

Each FOLDER holds tables (tests/benchmarks/fitting/tables.py says which columns they have; tests/benchmarks/op_tables.py
writes them from an installed aiconfigurator-core). For each GPU, engine, operation
and format it prints absolute errors in percent (median / 90th percentile) and the bias, through the product's kernels, on
all rows and on shapes that were held back from a fit of the other half. --leave-one-out adds what a GPU that nobody has
measured can expect: the error under constants fitted on the other GPUs of its kind. --write replaces the data files.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

import numpy as np
from fitting.families import kernel_seconds
from fitting.solve import Error, error, fit, predict
from fitting.tables import ENGINES, Rows, read_rows

from llmirage_server.perf.catalogue.constants import POOLED, Constants, constants_for
from llmirage_server.perf.catalogue.lookup import find_gpu

# Written beside what is fitted. The size of the mixed launch's penalty: measured kernels of RTX 4090 and RTX PRO 6000 under
# vLLM (LLMServingSim's attention grid, MIT): chunks and decodes in one FlashAttention 2 launch lose the packing of query
# heads, 1.4 to 2.3 times the sum of the two alone. Not seen on Hopper and Blackwell kernels.
_GRIDS = "LLMServingSim's attention grids of RTX 4090 and RTX PRO 6000 (MIT)"
_FLASH_2 = {"constants": {"per_group_head": 0.25}, "origin": _GRIDS}
_MIXED = {
    **dict.fromkeys(("class_pcie", "l40s", "rtx_pro_6000_server", "a100_sxm"), _FLASH_2),
    "rtx_4090": {"constants": {"per_group_head": 0.33}, "origin": f"{_GRIDS}: 2.0 times with 4 heads a group"},
}
_NO_PENALTY = {"constants": {"per_group_head": 0.0}, "origin": "assumed: kernels other than FlashAttention 2"}
KINDS = {"pcie": "class_pcie", "nvlink": "class_nvlink"}


@dataclass(frozen=True)
class Result:
    """One fit and how far off it is."""

    rows: Rows
    constants: dict[str, float]
    all_rows: Error
    held_out: Error

    @property
    def key(self) -> str:
        return f"{self.rows.op} {self.rows.dtype}"

    def line(self) -> dict[str, object]:
        e, name = self.all_rows, self.rows.engine if self.rows.engine != POOLED else ""
        where = " ".join(part for part in (name, self.rows.versions) if part)
        return {"constants": self.constants, "origin": f"{where}: {e.rows:,} rows, off {e.median:.1f} % (p90 {e.p90:.1f} %)"}


def main() -> None:
    """Fit, print, and with --write replace the data files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--gpu", nargs="*", help="only these")
    parser.add_argument("--op", nargs="*", help="only these; not with --write")
    parser.add_argument("--leave-one-out", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--source", default="op tables of aiconfigurator-core 0.12.0 (Apache-2.0)")
    arguments = parser.parse_args()
    if arguments.write and arguments.op:
        parser.error("--write needs every operation; leave --op away")
    tables = [rows for folder in arguments.folders for rows in read_rows(folder)]
    tables = [rows for rows in tables if not arguments.op or rows.op in arguments.op]
    if not tables:
        parser.error(f"no op tables in {', '.join(map(str, arguments.folders))}")
    chosen = [rows for rows in tables if not arguments.gpu or rows.gpu in arguments.gpu]
    by_gpu: dict[str, list[Result]] = defaultdict(list)
    with ProcessPoolExecutor() as pool:
        for result in pool.map(_fit_rows, [*chosen, *_pooled(chosen)]):
            by_gpu[result.rows.gpu].append(result)
            print(_report(result), flush=True)
        if arguments.leave_one_out:
            for text in pool.map(_leave_one_out, _across(tables)):
                print(text, flush=True)
        _summary(by_gpu)
        if arguments.write:
            for gpu, results in by_gpu.items():
                _write(gpu, results, arguments.source)
            if not arguments.gpu:
                for kind, name in KINDS.items():
                    groups = [group for group in _across(tables) if find_gpu(group[0].gpu).link == kind]
                    _write(name, list(pool.map(_fit_class, groups)), arguments.source)


def _fit_rows(rows: Rows) -> Result:
    gpu = find_gpu(rows.gpu)
    prior = None
    few = len(rows) < 100 and rows.op in ("gemm", "attention_prefill", "attention_decode")
    if few and gpu.constants_of not in (None, gpu.key):  # shapes of one model: lean on the twin
        twin = constants_for(find_gpu(str(gpu.constants_of)), "vllm" if rows.engine == POOLED else rows.engine)
        prior = twin.of(rows.op, rows.dtype)
    train = rows.shapes % 2 == 0
    held_out = Error(float("nan"), float("nan"), 0.0, 0)
    start = None
    if 0 < train.sum() < len(rows):
        start = fit([(rows.subset(train), gpu)], None, prior)
        rest = rows.subset(~train)
        held_out = error(predict(rest, gpu, start), rest.seconds)
    constants = fit([(rows, gpu)], start, prior)
    predicted = predict(rows, gpu, constants)
    if rows.engine != POOLED:  # rows of several engines differ in how they pack heads, which only the formula can mix
        asked = kernel_seconds(rows, gpu, _alone(rows, constants))
        if not np.allclose(asked, predicted, rtol=1e-3):
            worst = int(np.argmax(np.abs(np.log(asked / predicted))))
            sizes = {name: float(values[worst]) for name, values in rows.columns.items()}
            raise AssertionError(f"kernel and formula of {rows.op} {rows.dtype} disagree at {sizes}: {asked[worst]}")
        predicted = asked
    return Result(rows, constants, error(predicted, rows.seconds), held_out)


def _alone(rows: Rows, constants: Mapping[str, float]) -> Constants:
    """Constants that know one operation."""
    table = {rows.engine: {f"{rows.op} {rows.dtype}": {"constants": dict(constants), "origin": "just fitted"}}}
    return Constants(rows.engine, [("", table)], [("", table)])  # type: ignore[list-item]


def _joined(parts: list[Rows], gpu: str, engine: str) -> Rows:
    first = parts[0]
    names = set.intersection(*(set(part.columns) for part in parts))
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in names}
    seconds = np.concatenate([part.seconds for part in parts])
    shapes = np.concatenate([part.shapes for part in parts])
    versions = ", ".join(f"{part.engine} {part.versions}" if part.engine != POOLED else part.versions for part in parts)
    return Rows(gpu, engine, first.op, first.dtype, columns, seconds, shapes, versions)


def _pooled(tables: Iterable[Rows]) -> list[Rows]:
    """For each GPU, the rows of all engines together."""
    groups: dict[tuple[str, str, str], list[Rows]] = defaultdict(list)
    for rows in tables:
        if rows.engine != POOLED:
            groups[rows.gpu, rows.op, rows.dtype].append(rows)
    return [_joined(parts, parts[0].gpu, POOLED) for parts in groups.values()]


def _across(tables: list[Rows]) -> list[list[Rows]]:
    """Rows of one operation, format and engine (or of all engines) on all GPUs of one kind."""
    groups: dict[tuple[str, str, str, str], list[Rows]] = defaultdict(list)
    for rows in [*tables, *_pooled(tables)]:
        groups[find_gpu(rows.gpu).link, rows.engine, rows.op, rows.dtype].append(rows)
    return list(groups.values())


def _fit_class(parts: list[Rows]) -> Result:
    found = fit([(rows, find_gpu(rows.gpu)) for rows in parts])
    constants = {**found, "cache": 1.0, "cache_mb": 0.0} if "cache" in found else found
    predicted = [predict(rows, find_gpu(rows.gpu), found) for rows in parts]
    measured = np.concatenate([rows.seconds for rows in parts])
    whole = error(np.concatenate(predicted), measured)
    joined = replace(parts[0], gpu=KINDS[find_gpu(parts[0].gpu).link], versions=", ".join(r.gpu for r in parts))
    return Result(joined, constants, whole, whole)


def _leave_one_out(parts: list[Rows]) -> str:
    lines = []
    for held in parts if len(parts) > 1 else []:
        others = [(rows, find_gpu(rows.gpu)) for rows in parts if rows is not held]
        constants = fit(others)
        off = error(predict(held, find_gpu(held.gpu), constants), held.seconds)
        lines.append(f"unseen   {held.gpu:20} {held.engine:7} {held.op:24} {held.dtype:16} {off}")
    return "\n".join(lines)


def _report(result: Result) -> str:
    rows, held = result.rows, result.held_out
    return (
        f"{rows.gpu:20} {rows.engine:7} {rows.op:24} {rows.dtype:16} {result.all_rows}"
        f"   held-out shapes {held.median:5.1f} /{held.p90:6.1f}"
    )


def _summary(by_gpu: Mapping[str, list[Result]]) -> None:
    """The median over GPUs and engines of each operation and format."""
    groups: dict[str, list[Error]] = defaultdict(list)
    for results in by_gpu.values():
        for result in results:
            if result.rows.engine != POOLED or result.rows.versions.startswith("NCCL"):
                groups[result.key].append(result.all_rows)
    print("\nmedian over GPUs and engines of median / p90")
    for key, errors in sorted(groups.items()):
        print(f"  {key:42} {np.median([e.median for e in errors]):5.1f} /{np.median([e.p90 for e in errors]):6.1f}")


def _write(name: str, results: list[Result], source: str) -> None:
    """One line a fit, engines in a fixed order, so that a new fit shows in a diff."""
    engines: dict[str, dict[str, object]] = {engine: {} for engine in (*ENGINES, POOLED)}
    for result in results:
        engines[result.rows.engine][result.key] = result.line()
    engines[POOLED]["mixed_attention bf16"] = _MIXED.get(name, _NO_PENALTY)
    blocks = []
    for engine, lines in engines.items():
        body = ",\n".join(f"  {json.dumps(key)}: {json.dumps(line)}" for key, line in sorted(lines.items()))
        blocks.append(f" {json.dumps(engine)}: {{\n{body}\n }}")
    text = f'{{"source": {json.dumps(source)},\n"engines": {{\n' + ",\n".join(blocks) + "\n}}\n"
    path = Path(str(resources.files("llmirage_server.perf.catalogue") / "data" / "constants" / f"{name}.json"))
    path.write_text(text, encoding="utf-8")
    print(f"wrote {path.name}: {len(results)} fits, {len(text) / 1e3:.1f} kB")


if __name__ == "__main__":
    main()
