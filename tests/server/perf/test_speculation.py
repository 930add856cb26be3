"""Who drafts, what it costs, and how many drafts hold."""

import itertools

import pytest

from llmirage_server.config import ClusterConfig, ConfigError
from llmirage_server.config.planning import plan
from llmirage_server.perf.catalogue.lookup import find_model
from llmirage_server.perf.deployment import Deployment
from llmirage_server.perf.speculation import Speculative, SpeculativeMethod, chances, rate_of_length
from llmirage_server.perf.steps.step_model import StepBatch

GPT_OSS = "openai/gpt-oss-120b"


def speculative_of(**settings: object) -> Speculative:
    config = ClusterConfig(model=GPT_OSS, gpu="h200_sxm", speculative_method="eagle3", **settings)  # type: ignore[arg-type]
    [pool] = plan(config)
    assert pool.deployment.speculative is not None
    return pool.deployment.speculative


@pytest.mark.parametrize(("length", "drafts"), [(1.0, 3), (1.62, 1), (2.1, 3), (3.9, 3), (4.0, 3), (2.5, 7)])
def test_a_rate_brings_the_length_that_it_was_found_for(length: float, drafts: int) -> None:
    assert 1 + sum(chances(rate_of_length(length, drafts), drafts)) == pytest.approx(length)


def test_acceptance_is_given_as_a_rate_a_length_or_by_position() -> None:
    assert speculative_of(num_speculative_tokens=2, acceptance_rate=0.5).tokens_per_step == pytest.approx(1.75)
    assert speculative_of(num_speculative_tokens=3, acceptance_length=2.4).tokens_per_step == pytest.approx(2.4)
    rates = speculative_of(num_speculative_tokens=3, acceptance_rates=(0.6, 0.4, 0.2))
    assert rates.tokens_per_step == pytest.approx(2.2)


def test_the_scheduler_gets_the_rates_by_position() -> None:
    [pool] = plan(
        ClusterConfig(
            model=GPT_OSS, gpu="h200_sxm", speculative_method="eagle3", num_speculative_tokens=2, acceptance_rates=(0.6, 0.2)
        )
    )
    assert pool.limits.acceptance_rates == (0.6, 0.2)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"acceptance_rate": 0.5, "acceptance_length": 2.0}, "acceptance_rate and acceptance_length exclude each other"),
        ({"acceptance_length": 4.5}, "acceptance_length must be from 1 to 4 with 3 draft tokens, not 4.5"),
        ({"acceptance_rates": (0.5,)}, "acceptance_rates must be as many as num_speculative_tokens: 3, not 1"),
        ({"acceptance_rates": (0.5, 0.6, 0.1)}, "acceptance_rates must not rise: a draft token holds only if those before"),
        ({"acceptance_rates": (1.5, 0.6, 0.1)}, "acceptance_rates must be at least 0 and at most 1, not 1.5"),
        ({"draft_model": "Qwen3-0.6B"}, "a draft_model and speculative_method eagle3 exclude each other"),
    ],
)
def test_what_makes_no_sense_is_named(settings: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        speculative_of(num_speculative_tokens=3, **settings)


def test_published_acceptance_counts_where_nothing_is_given() -> None:
    published = speculative_of(num_speculative_tokens=3)
    assert published.tokens_per_step == pytest.approx(2.1)
    assert "inferencex-profiling@237385b" in published.acceptance_source
    assert speculative_of(num_speculative_tokens=3, acceptance_rate=0.7).acceptance_source == ""
    lengths = [speculative_of(num_speculative_tokens=drafts).tokens_per_step for drafts in range(1, 12)]
    assert lengths == sorted(lengths)
    assert lengths[1] == pytest.approx((1.64 + 2.1) / 2)  # with 2 drafts, between those of 1 and 3


def test_without_a_published_curve_the_rate_is_that_of_the_help() -> None:
    [pool] = plan(ClusterConfig(model="Qwen/Qwen3-8B", num_speculative_tokens=2, speculative_method="ngram"))
    assert pool.deployment.speculative == Speculative(2, "ngram", acceptance_rate=0.7)


def step_ms(method: SpeculativeMethod | None, drafts: int, sequences: int = 8, model: str = GPT_OSS) -> float:
    speculative = Speculative(drafts, method) if method else None
    deployment = Deployment.create(model, "h200_sxm", speculative=speculative)
    return deployment.step_model().step_s([], [4000] * sequences) * 1e3


def test_each_draft_of_a_head_costs_a_pass_and_a_query_more_to_verify() -> None:
    plain, times = step_ms(None, 0), [step_ms("eagle3", drafts) for drafts in range(1, 8)]
    assert plain < times[0]
    assert all(before < after for before, after in itertools.pairwise(times))
    assert step_ms("ngram", 3) < times[2]  # verification alone


def test_verification_computes_all_drafts_and_reads_each_context_once() -> None:
    ngram, plain = step_ms("ngram", 3, 64, "Qwen/Qwen3-8B"), step_ms(None, 0, 64, "Qwen/Qwen3-8B")
    four_times = step_ms(None, 0, 256, "Qwen/Qwen3-8B")
    assert plain < ngram < four_times


def test_a_head_is_one_layer_beside_the_models_tables() -> None:
    model = find_model(GPT_OSS)
    head = model.eagle3_head
    assert (head.layers, head.hidden, head.vocab) == (1, model.hidden, 32_000)
    plain, drafting, looking_up = (
        Deployment.create(GPT_OSS, "h200_sxm", speculative=each).memory
        for each in (None, Speculative(3, "eagle3"), Speculative(3, "ngram"))
    )
    # one layer (an MLP of 6 x 2880), twice its qkv, what joins three hidden states, 32,000 tokens of lm_head; bf16
    weights = 3 * 2880 * 17280 + 2880 * (2 * 80 * 64 + 64 * 64) + 3 * 2880**2 + 32_000 * 2880
    assert drafting.weights_bytes - plain.weights_bytes == pytest.approx(2 * weights, rel=0.001)
    assert drafting.kv_bytes_per_token > plain.kv_bytes_per_token
    assert (looking_up.weights_bytes, looking_up.kv_tokens) == (plain.weights_bytes, plain.kv_tokens)


def test_latent_attention_has_a_head_with_grouped_queries() -> None:
    step = Deployment.create("moonshotai/Kimi-K2.5", "b200_sxm", tp=8, speculative=Speculative(3, "eagle3")).roofline
    names = {line.name for line in step.explain([StepBatch([], [1000] * 4)])}
    assert any(name.startswith("draft joining projection") for name in names)


def test_sglangs_host_works_for_each_sequence_whose_drafts_it_verifies() -> None:
    def host_s(speculative: Speculative | None, engine: str) -> float:
        deployment = Deployment.create("Qwen/Qwen3-8B", "h200_sxm", engine=engine, speculative=speculative)
        [host] = [line for line in deployment.roofline.explain([StepBatch([], [4000] * 64)]) if line.name == "host"]
        return host.seconds

    drafting = Speculative(2, "ngram")
    assert host_s(drafting, "sglang") - host_s(None, "sglang") == pytest.approx(64 * 75e-6)
    assert host_s(drafting, "vllm") == pytest.approx(host_s(None, "vllm"))
