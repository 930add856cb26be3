"""How layers and experts are split over GPUs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmirage_server.perf.catalogue.layers import Dense, GatedDelta, Gqa, LayerGroup, Mamba2, Mla, Moe
from llmirage_server.perf.catalogue.lookup import find_gpu, find_model, list_models
from llmirage_server.perf.catalogue.models import ModelSpec
from llmirage_server.perf.parallelism import Parallelism, parallelism_problems, split_layers

FULL, WINDOW = Gqa(8, 2, 64), Gqa(8, 2, 64, window=128)
DENSE, MOE = Dense(1024), Moe(8, 2, 512)


def model(*groups: LayerGroup) -> ModelSpec:
    return ModelSpec("acme/m", 512, 1000, 4096, groups, "-")


def counts(spec: ModelSpec, stages: int) -> list[int]:
    return [sum(group.count for group in stage) for stage in split_layers(spec, stages)]


def test_what_is_left_over_goes_to_the_stages_before_the_last() -> None:
    # vLLM's get_pp_indices: 61 layers on 4 stages are 15, 15, 16, 15; 126 on 4 are 31, 32, 32, 31
    assert counts(model(LayerGroup(61, FULL, DENSE)), 4) == [15, 15, 16, 15]
    assert counts(model(LayerGroup(126, FULL, DENSE)), 4) == [31, 32, 32, 31]
    assert counts(model(LayerGroup(8, FULL, DENSE)), 1) == [8]


def test_leading_layers_come_first_and_others_are_mixed_evenly() -> None:
    leading = LayerGroup(3, FULL, DENSE, leading=True)
    spec = model(leading, LayerGroup(4, WINDOW, MOE), LayerGroup(5, FULL, MOE))
    first, second, third = split_layers(spec, 3)
    assert [(g.leading, g.count) for g in first] == [(True, 3), (False, 1)]
    assert [g.count for g in second] == [2, 2]
    assert [g.count for g in third] == [2, 2]


@given(st.sampled_from(list_models()), st.integers(1, 16))
def test_every_layer_is_in_one_stage(spec: ModelSpec, stages: int) -> None:
    split = split_layers(spec, stages)
    assert len(split) == stages
    assert max(counts(spec, stages)) - min(counts(spec, stages)) <= 1
    for group in spec.groups:
        kind = (group.attention, group.mlp, group.leading)
        found = sum(g.count for stage in split for g in stage if (g.attention, g.mlp, g.leading) == kind)
        assert found == sum(g.count for g in spec.groups if (g.attention, g.mlp, g.leading) == kind)


def test_sizes_of_an_instance() -> None:
    parallel = Parallelism(tp=2, pp=3, ep=4, dp=4)
    assert (parallel.gpus, parallel.stage_gpus, parallel.moe_tp) == (24, 8, 2)
    assert parallel.describe() == "tp 2, pp 3, dp 4, ep 4"
    assert Parallelism().describe() == ""


def test_a_hand_over_crosses_nodes_where_its_stages_are_not_on_one() -> None:
    h100 = find_gpu("h100")  # 8 in a node
    assert not Parallelism(tp=4, pp=2).crosses_nodes(0, h100)
    assert [Parallelism(tp=4, pp=4).crosses_nodes(i, h100) for i in range(3)] == [False, True, False]
    assert Parallelism(tp=8, pp=2).crosses_nodes(0, h100)


@pytest.mark.parametrize(
    ("attention", "tp", "sentence"),
    [
        (FULL, 3, "tp 3 does not divide the 8 attention heads of acme/m"),
        (Gqa(12, 3, 64), 2, "tp 2 and the 3 KV heads of acme/m do not divide each other"),
        (Mla(8, 0, 64, 32, 16, 32), 16, "tp 16 does not divide the 8 attention heads of acme/m"),
        (GatedDelta(4, 8, 64, 64), 16, "tp 16 does not divide the 8 value heads of acme/m"),
        (GatedDelta(3, 8, 64, 64), 4, "tp 4 and the 3 key heads of acme/m do not divide each other"),
        (Mamba2(8, 64, 3, 128), 4, "tp 4 and the 3 state groups of acme/m do not divide each other"),
    ],
)
def test_heads_that_cannot_be_split_are_named(attention: Gqa, tp: int, sentence: str) -> None:
    problems = list(parallelism_problems(model(LayerGroup(2, attention, Dense(960))), Parallelism(tp)))
    assert problems == [sentence]


@pytest.mark.parametrize(
    ("spec", "parallel", "sentence"),
    [
        (model(LayerGroup(4, FULL, DENSE)), Parallelism(pp=5), "pp 5 is more than the 4 layers of acme/m"),
        (
            model(LayerGroup(4, FULL, DENSE)),
            Parallelism(tp=2, ep=2),
            "ep 2 needs a mixture of experts, but acme/m is dense; use ep 1",
        ),
        (
            model(LayerGroup(4, FULL, DENSE)),
            Parallelism(dp=2),
            "dp 2 needs a mixture of experts: attention data parallelism shares experts, and acme/m is dense; run 2 "
            "instances instead",
        ),
        (
            model(LayerGroup(4, FULL, MOE)),
            Parallelism(tp=4, ep=3),
            "ep 3 does not divide tp 4: experts are spread over the GPUs of a pipeline stage; use tp 3 ep 3",
        ),
        (
            model(LayerGroup(4, FULL, MOE)),
            Parallelism(tp=2, dp=3, ep=4),
            "ep 4 does not divide tp 2 x dp 3 = 6: experts are spread over the GPUs of a pipeline stage",
        ),
        (
            model(LayerGroup(4, FULL, Moe(8, 2, 500))),
            Parallelism(tp=8),
            "tp 8 with ep 1 does not divide the expert width 500 of acme/m",
        ),
        (
            model(LayerGroup(4, FULL, Moe(8, 2, 512, shared_width=12))),
            Parallelism(tp=8),
            "tp 8 does not divide the shared expert's width 12 of acme/m",
        ),
    ],
)
def test_experts_that_cannot_be_spread_are_named(spec: ModelSpec, parallel: Parallelism, sentence: str) -> None:
    assert list(parallelism_problems(spec, parallel)) == [sentence]


def test_blocks_of_scales_are_not_cut() -> None:
    minimax = find_model("MiniMax-M2.5")  # experts of 1536
    assert not any(parallelism_problems(minimax, Parallelism(tp=4), "fp8_block"))
    assert "raise ep" in next(parallelism_problems(minimax, Parallelism(tp=8), "fp8_block"))
    assert not any(parallelism_problems(minimax, Parallelism(tp=8, ep=2), "fp8_block"))
    assert not any(parallelism_problems(minimax, Parallelism(tp=8), "bf16"))


def test_all_problems_are_told_at_once() -> None:
    problems = list(parallelism_problems(model(LayerGroup(2, Gqa(8, 2, 64), Moe(8, 2, 512))), Parallelism(tp=3, ep=5, pp=9)))
    assert len(problems) == 3
