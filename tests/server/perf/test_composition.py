"""What steps are made of: exact sums of kernels for small models, written out by hand."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from llmirage_server.perf.catalogue.constants import constants_for
from llmirage_server.perf.catalogue.dtypes import WEIGHT_DTYPES
from llmirage_server.perf.catalogue.layers import Dense, GatedDelta, Gqa, LayerGroup, Mamba2, Mla, Moe, SparseIndex
from llmirage_server.perf.catalogue.lookup import find_gpu
from llmirage_server.perf.catalogue.models import ModelSpec
from llmirage_server.perf.engines.engine import Engine
from llmirage_server.perf.engines.lookup import find_engine
from llmirage_server.perf.kernels import attention, collectives, moe
from llmirage_server.perf.kernels.kernel import Elementwise, Gemm
from llmirage_server.perf.parallelism import ONE_GPU, Parallelism
from llmirage_server.perf.speculation import Speculative
from llmirage_server.perf.steps.step import RooflineStep
from llmirage_server.perf.steps.step_model import StepBatch

H100 = find_gpu("h100")
HIDDEN, VOCAB = 1024, 5000
FP8, BF16 = WEIGHT_DTYPES["fp8"], WEIGHT_DTYPES["bf16"]
FP8_BLOCK = replace(FP8, name="fp8_block")  # the same bytes, other kernels
CHUNKS, CONTEXTS = [(300, 100), (20, 0)], [50, 900, 200]
NEW, TOKENS, ROWS = 320, 323, 5
# What decode attention without a window is asked for: a mean context of 1150 // 3 = 383 tokens is in the page of 368 to 383,
# the longest one in the four pages of 896 to 959, and both count as the middle of theirs.
IN_PAGES = 3, 3 * (368 + 7.5), 896 + 31.5


def model(*groups: LayerGroup) -> ModelSpec:
    return ModelSpec("acme/m", HIDDEN, VOCAB, 4096, groups, "-")


class Sum:
    """Adds kernel times as a person would: one line a kernel."""

    def __init__(self, engine: str = "vllm") -> None:
        self.constants, self.total = constants_for(H100, engine), 0.0

    def gemm(self, calls: int, n: int, k: int, tokens: int = TOKENS, dtype: str = "fp8") -> None:
        kernel = Gemm(H100, self.constants, WEIGHT_DTYPES[dtype], n, k, fused_cast=dtype == "fp8")
        self.total += calls * kernel.seconds(tokens)

    def experts(self, *shape: int, tokens: int) -> float:
        """Seconds of fp8 experts: the faster of scales per tensor and per block, as at 64 tokens."""
        kernels = [moe.Experts(H100, self.constants, d, *shape) for d in (FP8, FP8_BLOCK)]
        return min(kernels, key=lambda kernel: kernel.seconds(64)).seconds(tokens)

    def move(self, calls: int, bytes_per_token: float, tokens: int = TOKENS) -> None:
        self.total += calls * Elementwise(H100, bytes_per_token).seconds(tokens)

    def add(self, calls: int, seconds: float) -> None:
        self.total += calls * seconds

    def ends(self, tp: int = 1, rows: int = ROWS, tokens: int = TOKENS) -> None:
        """Embedding, final norm, lm_head, sampling."""
        self.move(1, 4 * HIDDEN, tokens)
        self.move(1, 8 * HIDDEN, tokens)
        self.gemm(1, VOCAB // tp, HIDDEN, rows, "bf16")
        self.move(1, 10 * VOCAB, rows)
        if tp > 1:
            self.add(1, self.all_reduce(tp, tokens))
            self.add(1, collectives.all_gather(H100, self.constants, tp, 2 * VOCAB).seconds(rows))

    def all_reduce(self, tp: int, tokens: int = TOKENS) -> float:
        return collectives.all_reduce(H100, self.constants, tp, 2 * HIDDEN).seconds(tokens)


def plain_engine(name: str) -> Engine:
    """Steps are the sums of their kernels, prompts too."""
    return replace(find_engine(name), prefill_in_place=1.0, launch_us=0.0)


def step(spec: ModelSpec, engine: str = "vllm", parallel: Parallelism = ONE_GPU, draft_tokens: int = 0) -> RooflineStep:
    speculative = Speculative(draft_tokens) if draft_tokens else None
    return RooflineStep(spec, H100, engine=plain_engine(engine), weights=FP8, parallel=parallel, speculative=speculative)


def gpu_s(
    spec: ModelSpec,
    prefill: Sequence[tuple[int, int]] = CHUNKS,
    decode: Sequence[int] = CONTEXTS,
    engine: str = "vllm",
    parallel: Parallelism = ONE_GPU,
) -> float:
    """A step without the host."""
    found = step(spec, engine, parallel).explain([StepBatch(prefill, decode)])
    return sum(o.seconds for o in found if o.name != "host")


def test_a_dense_model() -> None:
    s = Sum()
    s.gemm(3, (8 + 2 * 2) * 64, HIDDEN)
    s.move(3, 4 * (8 * 64 + 2 * 2 * 64))
    prefill = attention.prefill(H100, s.constants, 8, 2, 64, 64, "bf16")
    pairs = 300 * 100 + 300 * 301 // 2 + 20 * 21 // 2
    s.add(3, prefill.seconds(pairs, NEW, 100, 400))
    decode = attention.decode(H100, s.constants, 8, 2, 64, 64, "bf16")
    mixed = 1 + s.constants.of("mixed_attention", "bf16")["per_group_head"] * (8 / 2 - 1)
    s.add(3, mixed * decode.seconds(*IN_PAGES))
    s.gemm(3, HIDDEN, 8 * 64)
    s.gemm(3, 2 * 2048, HIDDEN)
    s.move(3, 2 * 3 * 2048)
    s.gemm(3, HIDDEN, 2048)
    s.move(6, 8 * HIDDEN)
    s.ends()
    assert gpu_s(model(LayerGroup(3, Gqa(8, 2, 64), Dense(2048)))) == pytest.approx(s.total, rel=1e-12)


def test_tensor_parallelism_halves_widths_and_adds_two_sums_a_layer() -> None:
    s = Sum("sglang")
    s.gemm(3, (4 + 2) * 64, HIDDEN, 3)
    s.move(3, 4 * (4 * 64 + 2 * 64), 3)
    s.add(3, attention.decode(H100, s.constants, 4, 1, 64, 64, "bf16").seconds(*IN_PAGES))
    s.gemm(3, HIDDEN, 4 * 64, 3)
    s.gemm(3, 2048, HIDDEN, 3)
    s.move(3, 3 * 2048, 3)
    s.gemm(3, HIDDEN, 1024, 3)
    s.move(6, 8 * HIDDEN, 3)
    s.add(6, s.all_reduce(2, 3))
    s.ends(tp=2, rows=3, tokens=3)
    spec = model(LayerGroup(3, Gqa(8, 2, 64), Dense(2048)))
    assert gpu_s(spec, [], CONTEXTS, "sglang", Parallelism(tp=2)) == pytest.approx(s.total, rel=1e-12)


def test_norms_are_part_of_all_reduces_up_to_the_size_that_the_engine_names() -> None:
    """TensorRT-LLM over two ranks: 16 MB, 8 kB a token. From twice as many tokens on, all norms are kernels of their own."""
    spec = ModelSpec("acme/m", 4096, VOCAB, 8192, (LayerGroup(3, Gqa(32, 8, 128), Dense(8192)),), "-")
    of = step(spec, "trtllm", Parallelism(tp=2))

    def of_one(tokens: int) -> float:
        return Elementwise(H100, 8 * 4096).seconds(tokens)

    def norms(tokens: int) -> float:
        return sum(o.seconds for o in of.explain([StepBatch([], [64] * tokens)]) if o.name == "norms")

    assert norms(1953) == pytest.approx(of_one(1953))  # the last, which no all-reduce comes before
    assert norms(3907) == pytest.approx(7 * of_one(3907), rel=1e-3)
    assert norms(2930) == pytest.approx(4 * of_one(2930), rel=1e-3)


def test_a_window_clips_what_attention_sees() -> None:
    s = Sum()
    block = Gqa(8, 2, 64, window=128)
    prefill = attention.prefill(H100, s.constants, 8, 2, 64, 64, "bf16", window=128)
    decode = attention.decode(H100, s.constants, 8, 2, 64, 64, "bf16", window=128)
    pairs = sum(min(128, i + 1) for i in range(100, 400)) + sum(min(128, i + 1) for i in range(20))
    operations = {o.name: o.seconds for o in step(model(LayerGroup(2, block, None))).explain([StepBatch(CHUNKS, CONTEXTS)])}
    mixed = 1 + s.constants.of("mixed_attention", "bf16")["per_group_head"] * 3
    assert operations["prefill attention, sliding window"] == pytest.approx(2 * prefill.seconds(pairs, NEW, 100, 256))
    assert operations["decode attention, sliding window"] == pytest.approx(
        2 * mixed * decode.seconds(3, 50 + 128 + 128, 128)
    )


def test_norms_over_all_heads_are_summed_over_the_ranks() -> None:
    plain, narrow, wide = (model(LayerGroup(2, Gqa(8, 2, 64, qk_norm=width), None)) for width in (0, 2 * 64, 10 * 64))
    s, found = Sum(), {o.name: o.seconds for o in step(wide, parallel=Parallelism(tp=2)).explain([StepBatch([], CONTEXTS)])}
    norms = Elementwise(H100, 6 * 5 * 64, launches=4).seconds(3)
    sums = collectives.all_reduce(H100, s.constants, 2, 8).seconds(3)
    assert (found["query and key norms"], found["all-reduce of query and key norms"]) == (2 * norms, 2 * sums)
    each_head = gpu_s(narrow, [], CONTEXTS) - gpu_s(plain, [], CONTEXTS)
    assert each_head == pytest.approx(2 * Elementwise(H100, 4 * 10 * 64).seconds(3))


def test_latent_attention_expands_prompts_and_absorbs_decodes() -> None:
    s, block = Sum(), Mla(16, 384, 128, 32, 16, 48)
    s.gemm(2, 384 + 144, HIDDEN)
    s.move(2, 4 * (384 + 2 * 144))
    s.gemm(2, 16 * 48, 384)
    s.gemm(2, 16 * (32 + 48), 128, NEW + 100)
    pairs = 300 * 100 + 300 * 301 // 2 + 20 * 21 // 2
    s.add(2, attention.mla_prefill(H100, s.constants, 16, 48, 48, 144, "bf16").seconds(pairs, NEW, 100, 400))
    s.add(2, attention.mla_bmm(H100, s.constants, 16, 128, 32).seconds(3))
    s.add(2, attention.mla_decode(H100, s.constants, 16, 128, 16, "bf16").seconds(*IN_PAGES))
    s.add(2, attention.mla_bmm(H100, s.constants, 16, 48, 128).seconds(3))
    s.gemm(2, HIDDEN, 16 * 48)
    s.move(2, 8 * HIDDEN)
    s.ends()
    assert gpu_s(model(LayerGroup(2, block, None))) == pytest.approx(s.total, rel=1e-12)


def test_a_sparse_index_scores_every_key_and_attention_reads_the_best() -> None:
    s, block = Sum(), Mla(16, 384, 128, 32, 16, 48, SparseIndex(4, 32, 128))
    operations = {o.name: o.seconds for o in step(model(LayerGroup(2, block, None))).explain([StepBatch(CHUNKS, CONTEXTS)])}
    everything = 300 * 100 + 300 * 301 // 2 + 20 * 21 // 2
    best = sum(min(128, i + 1) for i in range(100, 400)) + sum(min(128, i + 1) for i in range(20))
    scores = attention.indexer_prefill(H100, s.constants, 4, 32)
    attend = attention.mla_prefill(H100, s.constants, 64, 144, 128, 144, "bf16")  # 16 heads, padded to the kernel's 64
    assert operations["sparse index, prefill"] == pytest.approx(2 * scores.seconds(everything, NEW, 100, 400))
    assert operations["prefill attention, sparse"] == pytest.approx(2 * attend.seconds(best, NEW, 100, 256))
    decode = attention.mla_decode(H100, s.constants, 16, 128, 16, "bf16")
    assert operations["sparse index, decode"] == pytest.approx(
        2 * attention.indexer_decode(H100, s.constants, 4, 32).seconds(*IN_PAGES)
    )
    assert operations["decode attention, sparse"] == pytest.approx(2 * decode.seconds(3, 50 + 128 + 128, 128))
    assert "kv up projection" not in operations


def test_a_layer_that_borrows_an_index_scores_nothing() -> None:
    borrowed = Mla(16, 384, 128, 32, 16, 48, SparseIndex(0, 32, 128))
    names = {o.name for o in step(model(LayerGroup(2, borrowed, None))).explain([StepBatch(CHUNKS, CONTEXTS)])}
    assert "decode attention, sparse" in names
    assert not {n for n in names if "index" in n}


def test_linear_attention_treats_prompts_and_decodes_apart() -> None:
    s = Sum()
    delta, scan = GatedDelta(4, 8, 64, 32), Mamba2(8, 64, 2, 128)
    widths = (2 * 4 * 64 + 8 * 32, 8 * 64 + 2 * 2 * 128)
    s.gemm(2, 2 * 8, HIDDEN, dtype="bf16")  # beta and decay
    s.move(2, 4 * (widths[0] + 8 * 32))
    for conv, heads_width, heads in ((widths[0], 8 * 32, 0), (widths[1], 8 * 64, 8)):
        s.gemm(2, conv + heads_width + heads, HIDDEN)
        s.move(2, 4 * conv)
        s.move(2, 6 * heads_width)
        s.gemm(2, HIDDEN, heads_width)
    s.add(2, attention.recurrent_prefill(H100, s.constants, GatedDelta(4, 8, 64, 32)).seconds(NEW))
    s.add(2, attention.recurrent_decode(H100, s.constants, GatedDelta(4, 8, 64, 32)).seconds(3))
    s.add(2, attention.recurrent_prefill(H100, s.constants, Mamba2(8, 64, 2, 128)).seconds(NEW))
    s.add(2, attention.recurrent_decode(H100, s.constants, Mamba2(8, 64, 2, 128)).seconds(3))
    s.move(4, 8 * HIDDEN)
    s.ends()
    assert gpu_s(model(LayerGroup(2, delta, None), LayerGroup(2, scan, None))) == pytest.approx(s.total, rel=1e-12)


def test_a_shared_expert_beside_the_routed_ones_takes_what_it_moves() -> None:
    """vLLM up to 256 tokens; before them from there on, in full from 512 on."""
    spec = model(LayerGroup(2, None, Moe(16, 4, 256, shared_width=512)))
    kernel = Gemm(H100, constants_for(H100, "vllm"), FP8, 2 * 512, HIDDEN, fused_cast=True)
    seconds = {}
    for tokens in (256, 384, 512):
        found = step(spec).explain([StepBatch([], [100] * tokens)])
        seconds[tokens] = next(o.seconds for o in found if o.name == "shared expert gate and up") / 2
    assert seconds[256] == pytest.approx(kernel.work(256).ideal_s)
    work = kernel.work(384)
    assert seconds[384] == pytest.approx((work.seconds + work.ideal_s) / 2)
    assert seconds[512] == pytest.approx(kernel.seconds(512))
    sglang = gpu_s(spec, [], [100] * 64, "sglang")
    assert sglang > gpu_s(spec, [], [100] * 64, "vllm")


def test_a_mixture_with_a_shared_expert_and_a_latent_space() -> None:
    s, block = Sum(), Moe(16, 4, 256, shared_width=512, shared_gate=True, latent=256)
    s.gemm(2, 16, HIDDEN, dtype="bf16")
    s.move(2, 4 * 16)
    s.gemm(2, 1, HIDDEN, dtype="bf16")
    s.move(2, 6 * HIDDEN)
    for kernel in (
        Gemm(H100, s.constants, FP8, 2 * 512, HIDDEN, fused_cast=True),
        Elementwise(H100, 2 * 3 * 512),
        Gemm(H100, s.constants, FP8, HIDDEN, 512, fused_cast=True),
    ):
        work, alone = kernel.work(TOKENS), TOKENS / 256 - 1
        s.add(2, work.ideal_s + alone * (work.seconds - work.ideal_s))
    s.gemm(2, 256, HIDDEN)
    s.add(2, s.experts(256, 256, 16, 4, 1, tokens=TOKENS))
    s.gemm(2, HIDDEN, 256)
    s.move(2, 8 * HIDDEN)
    s.ends()
    assert gpu_s(model(LayerGroup(2, None, block))) == pytest.approx(s.total, rel=1e-12)


def test_fp8_experts_run_the_faster_of_two_kernels() -> None:
    for gpu, faster in ((H100, "fp8_block"), (find_gpu("b200"), "fp8")):
        constants = constants_for(gpu, "vllm")
        spec = model(LayerGroup(2, None, Moe(16, 4, 256)))
        found = RooflineStep(spec, gpu, engine=plain_engine("vllm"), weights=FP8).explain([StepBatch([], [100] * 64)])
        seconds = {
            dtype.name: 2 * moe.Experts(gpu, constants, dtype, HIDDEN, 256, 16, 4, 1).seconds(64)
            for dtype in (FP8, FP8_BLOCK)
        }
        assert min(seconds, key=lambda name: seconds[name]) == faster
        assert next(o.seconds for o in found if o.name == "experts") == seconds[faster]


@pytest.mark.parametrize(
    ("gpu", "ranks", "weights", "sent"),
    [
        ("b200", 8, "nvfp4", False),  # eight GPUs of a node
        ("gb200", 4, "fp8", False),  # as many ranks as a token has experts
        ("gb200", 8, "fp8", True),
    ],
)
def test_tensorrt_llm_sends_tokens_to_experts_only_where_ranks_outnumber_them_over_wide_nvlink(
    gpu: str, ranks: int, weights: str, sent: bool
) -> None:
    spec, on, dtype = model(LayerGroup(2, Gqa(8, 2, 64), Moe(16, 4, 256))), find_gpu(gpu), WEIGHT_DTYPES[weights]
    parallel = Parallelism(dp=ranks, ep=ranks)
    step = RooflineStep(spec, on, engine=plain_engine("trtllm"), weights=dtype, parallel=parallel)
    found = {o.name: o.seconds for o in step.explain([StepBatch([], [100] * 64)] * ranks)}
    constants = constants_for(on, "trtllm")
    if sent:
        dispatch = collectives.dispatch(on, constants, ranks, HIDDEN, 4)
        assert found["dispatch"] == pytest.approx(2 * dispatch.seconds(64))
        assert "all-gather" not in found
    else:  # quantized before they are gathered
        width = dtype.activation_bytes * HIDDEN + 8 * 4
        gather = collectives.all_gather(on, constants, ranks, width)
        assert found["all-gather"] == pytest.approx(2 * gather.seconds(64 * ranks))
        assert "dispatch" not in found


@pytest.mark.parametrize("engine", ["vllm", "trtllm"])
def test_attention_ranks_run_in_lockstep_and_share_experts(engine: str) -> None:
    block, attend = Moe(16, 4, 256), Gqa(8, 2, 64)
    spec, parallel = model(LayerGroup(2, attend, block)), Parallelism(dp=2, ep=2)
    batches = [StepBatch([], CONTEXTS), StepBatch(CHUNKS, [])]
    found = {o.name: o.seconds for o in step(spec, engine, parallel).explain(batches)}
    s = Sum(engine)
    together = 3 + NEW
    experts = s.experts(HIDDEN, 256, 16, 4, 2, tokens=together)
    assert found["experts"] == pytest.approx(2 * experts)
    # the rank with the prompts is the slower one: its attention counts, the other's does not
    prefill = attention.prefill(H100, s.constants, 8, 2, 64, 64, "bf16")
    pairs = 300 * 100 + 300 * 301 // 2 + 20 * 21 // 2
    assert found["prefill attention"] == pytest.approx(2 * prefill.seconds(pairs, NEW, 100, 400))
    assert "decode attention" not in found
    # vLLM gathers tokens in bf16 with the router's logits; TensorRT-LLM in fp8, each with its 4 experts and their weights
    gather = collectives.all_gather(H100, s.constants, 2, 2 * HIDDEN + 2 * 16 if engine == "vllm" else HIDDEN + 8 * 4)
    scatter = collectives.reduce_scatter(H100, s.constants, 2, 2 * HIDDEN)
    assert found["all-gather"] == pytest.approx(2 * gather.seconds(together))
    assert found["reduce-scatter"] == pytest.approx(2 * scatter.seconds(together))
    assert found["host"] == pytest.approx(
        find_engine(engine).host_s(sum(t for n, t in found.items() if n != "host"), 3)
        + find_engine(engine).dp_sync_ms * 1e-3
    )


def test_a_mixture_sliced_over_tensor_parallel_ranks_is_summed_like_an_mlp() -> None:
    spec = model(LayerGroup(2, None, Moe(16, 4, 256)))
    found = {o.name: o for o in step(spec, "sglang", Parallelism(tp=4, ep=2)).explain([StepBatch([], CONTEXTS)])}
    s = Sum("sglang")
    assert found["experts"].seconds == pytest.approx(2 * s.experts(HIDDEN, 128, 16, 4, 2, tokens=3))
    assert found["all-reduce"].calls == 2 + 1  # and the embedding's
    assert found["all-reduce"].seconds == pytest.approx(3 * s.all_reduce(4, 3))


def test_a_pipeline_adds_hand_overs_and_nothing_else() -> None:
    spec = model(LayerGroup(4, Gqa(8, 2, 64), Dense(2048)))
    s = Sum()
    hand_over = collectives.point_to_point(H100, s.constants, 4 * HIDDEN).seconds(TOKENS)
    whole, split = gpu_s(spec), gpu_s(spec, parallel=Parallelism(pp=2))
    assert split == pytest.approx(whole + hand_over, rel=1e-9)
    pipeline = step(spec, parallel=Parallelism(pp=2))
    times = pipeline.stages_s([StepBatch(CHUNKS, CONTEXTS)])
    assert len(times) == pipeline.stages == 2
    assert sum(times) == pytest.approx(pipeline.step_s(CHUNKS, CONTEXTS), rel=1e-12)


def test_a_prediction_layer_drafts_once_for_each_token() -> None:
    spec = model(LayerGroup(2, Gqa(8, 2, 64), Dense(2048)))
    drafting = step(spec, draft_tokens=2)
    found = {o.name: o for o in drafting.explain([StepBatch([], CONTEXTS)])}
    s = Sum()
    # each of the three sequences carries three tokens through the model, every one of them with its logits
    verify = attention.decode(H100, s.constants, 8, 2, 64, 64, "bf16", queries=3)
    assert found["decode attention"].seconds == pytest.approx(2 * verify.seconds(*IN_PAGES))
    assert found["lm_head"].seconds == pytest.approx(Gemm(H100, s.constants, BF16, VOCAB, HIDDEN).seconds(9))
    # first all nine tokens go through the drafting layer, then one a sequence
    again = attention.decode(H100, s.constants, 8, 2, 64, 64, "bf16")
    drafted = verify.seconds(*IN_PAGES) + again.seconds(*IN_PAGES)
    assert found["draft decode attention"].seconds == pytest.approx(drafted)
    head = Gemm(H100, s.constants, BF16, VOCAB, HIDDEN).seconds(3)
    assert (found["draft lm_head"].calls, found["draft lm_head"].seconds) == (2, pytest.approx(2 * head))


def test_a_draft_model_runs_whole() -> None:
    spec, small = model(LayerGroup(2, Gqa(8, 2, 64), Dense(2048))), model(LayerGroup(1, Gqa(4, 2, 64), Dense(512)))
    with_draft = RooflineStep(
        spec, H100, engine=plain_engine("vllm"), weights=FP8, draft=small, speculative=Speculative(1, "draft_model")
    )
    found = {o.name: o.seconds for o in with_draft.explain([StepBatch([], CONTEXTS)])}
    s = Sum()
    s.gemm(1, 2 * 512, HIDDEN, 6)
    assert found["draft mlp gate and up"] == pytest.approx(s.total)
