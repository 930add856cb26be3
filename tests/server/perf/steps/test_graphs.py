"""Decoding steps in CUDA graphs of some sizes: what is padded, and what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmirage_server.perf.catalogue.engines import find_engine
from llmirage_server.perf.deployment import Deployment
from llmirage_server.perf.errors import DeploymentError
from llmirage_server.perf.steps.load import RankCounts, captured, padded
from llmirage_server.perf.steps.step_model import StepBatch

SIZES = (1, 2, 4, 8, 512, 1024, 2048)


def engine_file(folder: Path, sizes: str = "[1, 8, 512, 1024, 2048]") -> str:
    file = folder / "padding.yaml"
    file.write_text(f"base: trtllm\ngraph_batches: {sizes}\n")
    return str(file)


@pytest.mark.parametrize(
    ("sizes", "most", "expected"),
    [
        (SIZES, 768, (1, 2, 4, 8, 512, 768)),  # the next size is cut down to the most sequences
        (SIZES, 512, (1, 2, 4, 8, 512)),
        (SIZES, 4096, SIZES),
        ((), 768, ()),
    ],
)
def test_graphs_are_captured_up_to_the_most_sequences(sizes: tuple[int, ...], most: int, expected: tuple[int, ...]) -> None:
    assert captured(sizes, most) == expected


def test_a_batch_is_padded_to_the_next_graph() -> None:
    graphs = captured(SIZES, 4096)
    assert [padded(n, graphs) for n in (0, 1, 3, 8, 600, 2048, 2049)] == [0, 1, 4, 8, 1024, 2048, 2049]
    assert padded(600, ()) == 600


def test_steps_with_prompts_are_not_padded() -> None:
    alone, mixed = RankCounts((), 600, 2, (1024,)), RankCounts(((100, 0),), 600, 2, (1024,))
    assert (alone.tokens, alone.rows, alone.decode_tokens, alone.sequences) == (2048, 2048, 1200, 600)
    assert (mixed.tokens, mixed.rows) == (1300, 1201)


def test_padding_costs_what_the_sequences_would_without_their_attention(tmp_path: Path) -> None:
    def step(engine: str, sequences: int) -> dict[str, float]:
        made = Deployment.create("Llama-3.1-405B", "h200", tp=8, engine=engine, weights="fp8", max_num_seqs=1536)
        return {each.name: each.seconds for each in made.roofline.explain([StepBatch([], [1000] * sequences)])}

    def without_attention(times: dict[str, float]) -> dict[str, float]:
        return {name: seconds for name, seconds in times.items() if name not in ("host", "decode attention", "sampler")}

    file = engine_file(tmp_path)
    short, full, plain = step(file, 600), step(file, 1024), step("trtllm", 600)
    assert without_attention(short) == pytest.approx(without_attention(full))
    assert short["decode attention"] == plain["decode attention"]
    assert sum(short.values()) > 1.1 * sum(plain.values())


@pytest.mark.parametrize("split", [{}, {"dp": 2, "tp": 1}, {"pp": 2}])
def test_padded_steps_take_as_long_as_their_operations(tmp_path: Path, split: dict[str, int]) -> None:
    made = Deployment.create("Qwen3-30B-A3B", "h200", engine=engine_file(tmp_path), **split)  # type: ignore[arg-type]
    batches = [StepBatch([], [1000] * 600)] * made.roofline.ranks
    assert sum(made.roofline.stages_s(batches)) == pytest.approx(sum(e.seconds for e in made.roofline.explain(batches)))


def test_engine_files_list_sizes(tmp_path: Path) -> None:
    assert find_engine(engine_file(tmp_path)).graph_batches == (1, 8, 512, 1024, 2048)
    with pytest.raises(DeploymentError, match="graph_batches: must be a list of positive integers"):
        find_engine(engine_file(tmp_path, "[0]"))
