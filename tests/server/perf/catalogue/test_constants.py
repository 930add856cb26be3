"""Constants: what was fitted is used, what was not is taken from the nearest thing that was, and says so."""

from dataclasses import replace

import pytest

from llmirage_server.perf.catalogue.constants import ENGINES, Constants, constants_for
from llmirage_server.perf.catalogue.dtypes import WEIGHT_DTYPES
from llmirage_server.perf.catalogue.lookup import find_gpu, list_gpus
from llmirage_server.perf.deployment import Deployment
from llmirage_server.perf.kernels.kernel import Gemm


def fit(value: float) -> dict[str, object]:
    return {"constants": {"x": value}, "origin": f"origin {value:g}"}


def constants(own: dict[str, dict[str, object]], twin: dict[str, dict[str, object]]) -> Constants:
    return Constants("vllm", [("", own), ("twin", twin)], [("", own)])  # type: ignore[list-item]


def test_this_engine_comes_before_all_engines_pooled() -> None:
    both = {"vllm": {"gemm fp8": fit(1)}, "pooled": {"gemm fp8": fit(2)}}
    assert constants(both, {}).of("gemm", "fp8")["x"] == 1
    assert constants(both, {}).provenance("gemm", "fp8") == "fitted: gemm fp8, origin 1"
    del both["vllm"]
    assert constants(both, {}).of("gemm", "fp8")["x"] == 2
    assert constants(both, {}).provenance("gemm", "fp8") == "fitted: gemm fp8, engines pooled, origin 2"


def test_a_near_format_comes_before_another_gpu() -> None:
    own = {"vllm": {"gemm bf16": fit(1), "gemm fp8": fit(2)}}
    twin = {"vllm": {"gemm fp8_block": fit(3), "gemm int4": fit(4)}}
    found = constants(own, twin)
    assert found.of("gemm", "fp8_block")["x"] == 2
    assert found.provenance("gemm", "fp8_block") == "transferred: gemm fp8, origin 2"
    # weight-only kernels are nearer to bf16 of this GPU than to nothing, and int4 of the twin comes after both
    assert found.of("gemm", "int4")["x"] == 1


def test_another_gpu_comes_where_this_one_knows_nothing_of_the_operation() -> None:
    found = constants({"vllm": {"gemm bf16": fit(1)}}, {"pooled": {"moe fp8": fit(5)}})
    assert found.of("moe", "fp8")["x"] == 5
    assert found.provenance("moe", "fp8") == "transferred: moe fp8 on twin, engines pooled, origin 5"


def test_link_constants_come_from_the_sources_of_links_alone() -> None:
    found = constants({}, {"vllm": {"all_reduce bf16": fit(1), "gemm bf16": fit(2)}})
    assert found.of("gemm", "bf16")["x"] == 2
    with pytest.raises(KeyError, match="no constants for all_reduce in bf16"):
        found.of("all_reduce", "bf16")
    with pytest.raises(KeyError, match="no constants for all_reduce in bf16"):
        found.provenance("all_reduce", "bf16")


def test_measured_gpus_say_on_how_many_rows_and_how_well() -> None:
    found = constants_for(find_gpu("h100_sxm"), "vllm").provenance("gemm", "bf16")
    assert found.startswith("fitted: gemm bf16, vllm 0.24.0: 1,365 rows, off ")


def test_a_pcie_card_of_an_nvlink_chip_has_its_kernels_but_not_its_links() -> None:
    sxm, pcie = find_gpu("h100_sxm"), find_gpu("h100_pcie")
    assert constants_for(pcie, "vllm").of("gemm", "bf16") == constants_for(sxm, "vllm").of("gemm", "bf16")
    assert constants_for(pcie, "vllm").provenance("gemm", "bf16").startswith("transferred: gemm bf16 on h100_sxm")
    assert (
        constants_for(pcie, "vllm")
        .provenance("all_reduce", "bf16")
        .startswith("transferred: all_reduce bf16 on RTX PRO 6000 Blackwell Server")
    )


def test_links_of_pcie_cards_are_those_of_the_measured_card_with_the_same_generation_of_pcie() -> None:
    """Four L40S reach a sixth of what four RTX PRO 6000 do: with both pooled, four H100 PCIe were slower than two."""
    fifth, fourth = (constants_for(find_gpu(name), "vllm").of("all_reduce", "bf16") for name in ("h100_pcie", "a100_pcie"))
    assert fifth == constants_for(find_gpu("rtx_pro_6000_server"), "vllm").of("all_reduce", "bf16")
    assert fourth == constants_for(find_gpu("l40s"), "vllm").of("all_reduce", "bf16")
    seconds = {}
    for tp in (2, 4, 8):
        model = Deployment.create("llama-3.1-70b", "h100_pcie", engine="vllm", tp=tp, weights="fp8").step_model()
        seconds[tp] = model.step_s([(4096, 0)], [])
    assert max(seconds.values()) < 1.5 * seconds[2]


def test_a_gpu_that_nobody_measured_takes_what_its_kind_reaches() -> None:
    found = constants_for(find_gpu("mi300x"), "sglang")
    assert found.provenance("gemm", "fp8").startswith("transferred: gemm fp8 on all measured NVLink GPUs, sglang ")
    assert 0.4 < constants_for(find_gpu("tpu_v5p"), "sglang").of("gemm", "fp8")["compute"] < 1.0


@pytest.mark.parametrize("gpu", ["mi300x", "mi325x", "mi350x", "mi355x"])
def test_amds_kernels_reach_what_runs_of_them_say(gpu: str) -> None:
    spec = find_gpu(gpu)
    reached = spec.reached
    assert reached is not None
    found, pooled = (constants_for(each, "sglang") for each in (spec, replace(spec, reached=None)))
    for op, dtype in (("gemm", "fp8_block"), ("moe", "fp8_block"), ("mla_decode", "fp8"), ("mla_prefill", "fp8")):
        own, theirs = found.of(op, dtype), pooled.of(op, dtype)
        assert own["memory"] == pytest.approx(min(1.0, theirs["memory"] * reached.memory))
        assert own["compute"] == pytest.approx(theirs["compute"] * reached.compute)
        assert own["floor_us"] == pytest.approx(theirs["floor_us"] + reached.launch_us)
    assert found.of("all_reduce", "bf16")["bulk_link"] == pooled.of("all_reduce", "bf16")["bulk_link"]


def test_rtx_4090_has_its_own_gemm_and_the_rest_of_its_architecture() -> None:
    found = constants_for(find_gpu("rtx_4090"), "vllm")
    assert 0.85 < found.of("gemm", "bf16")["memory"] < 0.96
    assert 0.95 < found.of("gemm", "bf16")["compute"] < 1.06
    assert "l40s" in found.provenance("moe", "bf16")


def test_chunks_and_decodes_in_one_launch_cost_more_where_flash_attention_2_runs_them() -> None:
    share = {key: constants_for(find_gpu(key), "vllm").of("mixed_attention", "bf16")["per_group_head"] for key in
             ("rtx_4090", "rtx_pro_6000_server", "l40s", "h100_sxm", "b200_sxm")}  # fmt: skip
    assert share == {"rtx_4090": 0.33, "rtx_pro_6000_server": 0.25, "l40s": 0.25, "h100_sxm": 0.0, "b200_sxm": 0.0}


def test_vllm_takes_block_scaled_gemms_from_the_other_engines() -> None:
    # its own table was timed without CUDA graphs
    found = constants_for(find_gpu("h200_sxm"), "vllm")
    assert "engines pooled" in found.provenance("gemm", "fp8_block")
    assert found.of("gemm", "fp8_block")["floor_us"] < 10


def disagreements(rows: int, n: int, k: int) -> set[tuple[str, str]]:
    """GPUs and formats where one engine's product takes 1.5 times as long as another's, as a model runs it."""
    found = set()
    for gpu in list_gpus():
        for dtype in (each.on(gpu.flops) for each in WEIGHT_DTYPES.values()):
            times = [
                Gemm(gpu, constants_for(gpu, engine), dtype, n, k, fused_cast=dtype.name == "fp8").seconds(rows)
                for engine in ENGINES
            ]
            if max(times) > 1.5 * min(times):
                found.add((gpu.key, dtype.name))
    return found


def test_engines_agree_about_the_same_product_on_the_same_gpu() -> None:
    """The listed ones are as measured: SGLang 0.5.14 has no fp8 kernels for cards of Blackwell, nor vLLM int8 for B300."""
    cards = ("rtx_5090", "rtx_pro_6000_server", "rtx_pro_6000_workstation")
    listed = {(card, dtype) for card in cards for dtype in ("fp8", "int8")}
    listed |= {("b300_sxm", "int8"), ("gb300", "int8"), ("h20_sxm", "fp8")}
    assert disagreements(32, 8192, 8192) == listed
    assert disagreements(4096, 8192, 8192) == set()


@pytest.mark.parametrize("engine", ENGINES)
def test_every_gpu_of_the_catalogue_can_run_every_kernel(engine: str) -> None:
    for gpu in list_gpus():
        found = constants_for(gpu, engine)
        for dtype in WEIGHT_DTYPES.values():
            name = dtype.on(gpu.flops).kernel_dtype
            assert found.of("gemm", name)["memory"] > 0
            assert found.of("moe", name)["memory"] > 0
        for op in ("attention_prefill", "attention_decode", "attention_decode_window", "mla_prefill", "mla_decode"):
            for kv_dtype in ("bf16", "fp8"):
                assert found.of(op, kv_dtype)["memory"] > 0
        for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "dispatch", "combine"):
            assert found.of(op, "bf16")["bulk_link"] > 0
        assert found.of("mla_bmm", "bf16")["memory"] > 0
        assert found.of("gated_delta_prefill", "bf16")["floor_us"] > 0
        assert found.of("gated_delta_decode", "bf16")["memory"] > 0


def test_unknown_engine_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="no constants for engine 'tgi'; known engines: vllm, sglang, trtllm"):
        constants_for(find_gpu("h100_sxm"), "tgi")


def test_a_gpu_of_the_users_own_names_its_twin() -> None:
    own = replace(find_gpu("l4"), key="custom:mine", constants_of="l40s")
    assert constants_for(own, "vllm").provenance("gemm", "bf16").startswith("transferred: gemm bf16 on l40s, vllm 0.24.0")


@pytest.mark.parametrize(
    ("name", "rates", "kernels"),
    [
        ("fp8", {"bf16"}, "int8_weight_only"),
        ("fp8_block", {"bf16", "fp8"}, "fp8_block"),
        ("nvfp4", {"bf16", "fp8"}, "int4"),
        ("int8", {"bf16", "int8"}, "int8"),
        ("mxfp4", {"bf16", "fp8", "fp4"}, "mxfp4"),
    ],
)
def test_a_widened_format_runs_weight_only_kernels(name: str, rates: set[str], kernels: str) -> None:
    dtype = WEIGHT_DTYPES[name].on(rates)
    assert dtype.kernel_dtype == kernels
    assert dtype.weight_bytes == WEIGHT_DTYPES[name].weight_bytes
