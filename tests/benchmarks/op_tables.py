"""Writes the op tables that fit_ops.py reads, from those that aiconfigurator-core ships (Apache-2.0), on a thinner grid.

Run it, where the extra [silicon] is installed:  python tests/benchmarks/op_tables.py OUT --gpu b300_sxm gb300 [--op gemm]

Kept are powers of two and the sizes of common models; latencies become microseconds.
"""

import argparse
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

VERSIONS = {"vllm": "0.24.0", "sglang": "0.5.14", "trtllm": "1.3.0rc20", "nccl": "2.29.2"}
TOKENS = [2**i for i in range(15)]
WIDTHS = [512, 1024, 2048, 4096, 5120, 7168, 8192, 12288, 16384, 51200, 65536]
HEADS = [4, 8, 16, 32, 64]
CONTEXTS = [128, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072]
EXPERTS = {
    (2048, 512, 8, 256),
    (2048, 768, 8, 128),
    (2880, 2880, 4, 32),
    (2880, 2880, 4, 128),
    (3072, 1536, 8, 256),
    (4096, 1536, 8, 128),
    (4096, 14336, 2, 8),
    (5120, 8192, 1, 128),
    (6144, 2560, 8, 160),
    (7168, 2048, 8, 256),
    (7168, 2048, 8, 384),
}
Frame = Any  # pandas.DataFrame, which has no types


def _gemm(d: Frame) -> Frame:
    return d[d.m.isin(TOKENS) & d.n.isin(WIDTHS) & d.k.isin(WIDTHS)]


def _heads(d: Frame) -> Frame:
    return d[d.num_heads.isin(HEADS) & d.head_dim.isin([64, 128]) & d.window_size.isin([0, 128])]


def _prefill(d: Frame) -> Frame:
    d = _heads(d[(d.step == 0) & d.batch_size.isin([1, 4, 16])])
    return d[d.isl.isin([64, *CONTEXTS[:7], 256]) & d.num_key_value_heads.isin([1, 2, *HEADS])]


def _decode(d: Frame) -> Frame:
    d = _heads(d.assign(kv_len=d.isl + d.step))
    return d[d.kv_len.isin(CONTEXTS) & d.batch_size.isin([1, 4, 16, 64, 128, 256])]


def _moe(d: Frame) -> Frame:
    shapes = zip(d.hidden_size, d.inter_size, d.topk, d.num_experts, strict=True)
    d = d[[shape in EXPERTS for shape in shapes]]
    return d[d.num_tokens.isin([1, 4, 16, *TOKENS[6:]]) & d.distribution.str.startswith("power_law")]


def _mla(phase: str) -> Callable[[Frame], Frame]:
    def keep(d: Frame) -> Frame:
        d = d.assign(seq_len=d.isl + d.step, phase=phase)
        return d[
            d.num_heads.isin([8, 16, 32, 64, 128]) & d.batch_size.isin([1, 4, 16, 64, 128, 256]) & d.seq_len.isin(CONTEXTS)
        ]

    return keep


def _everything(d: Frame) -> Frame:
    return d


# table, folder, file, what to keep
SOURCES: list[tuple[str, str, str, Callable[[Frame], Frame]]] = [
    ("gemm", "gemm", "gemm_perf", _gemm),
    ("context_attention", "attention", "context_attention_perf", _prefill),
    ("generation_attention", "attention", "generation_attention_perf", _decode),
    ("moe", "moe", "moe_perf", _moe),
    ("mla", "mla", "context_mla_perf", _mla("context")),
    ("mla", "mla", "generation_mla_perf", _mla("generation")),
    ("mla_bmm", "mla_bmm", "mla_bmm_perf", _everything),
    ("custom_allreduce", "comm", "custom_allreduce_perf", _everything),
    ("moe_a2a", "comm", "moe_a2a_perf", _everything),
    ("nccl", "comm", "nccl_perf", _everything),
    ("gdn", "linear_attention", "gdn_perf", _everything),
]


def main() -> None:
    """Convert the tables of the GPUs asked for."""
    import pandas

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--gpu", nargs="+", required=True)
    parser.add_argument("--op", nargs="+", choices=sorted({source[0] for source in SOURCES}))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    data = Path(str(resources.files("aiconfigurator_core"))) / "systems" / "data"
    for table in dict.fromkeys(source[0] for source in SOURCES):
        if arguments.op and table not in arguments.op:
            continue
        parts = [part for gpu in arguments.gpu for part in _parts(data, gpu, table, pandas.read_parquet)]
        if parts:
            path = arguments.out / f"{table}.csv"
            joined = pandas.concat(parts).drop_duplicates()
            joined.to_csv(path, index=False)
            print(f"{path}: {len(joined):,} rows")


def _parts(data: Path, gpu: str, table: str, read: Callable[[Path], Frame]) -> Iterator[Frame]:
    for name, folder, file, keep in SOURCES:
        if name != table:
            continue
        for engine, version in VERSIONS.items():
            path = data / gpu / folder / engine / version / f"{file}.parquet"
            if path.exists():
                d = keep(read(path))
                d = d.assign(system=gpu, backend=engine, latency_us=d.latency * (1.0 if table == "moe_a2a" else 1e3))
                yield (d.assign(nccl_version=d.version) if table == "nccl" else d).drop(
                    columns=["latency", "device", "framework"]
                )


if __name__ == "__main__":
    main()
