"""Objectives as users write them: what they mean, what is refused, and whether a run meets them."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmirage_client.measure.catalogue import PER_CONVERSATION, PER_REQUEST, WHOLE_RUN
from llmirage_client.measure.metrics import Metrics
from llmirage_client.measure.slo import STATISTICS, SloError, judge, parse_slo
from llmirage_shared.statistics import summarize


def metrics(per_request: dict[str, list[float]], whole_run: dict[str, float]) -> Metrics:
    summaries = {tag: summary for tag, values in per_request.items() if (summary := summarize(values))}
    return Metrics(
        per_request=summaries, whole_run=whole_run, errors=(), input_counted_by="server", output_counted_by="server"
    )


@pytest.mark.parametrize(
    ("text", "name", "comparison", "limit"),
    [
        ("ttft_p99<500ms", "time_to_first_token_p99", "<", 500),
        ("ttft_p99<0.5s", "time_to_first_token_p99", "<", 500),
        ("ttft_p99<500", "time_to_first_token_p99", "<", 500),
        ("p99_ttft <= 2 s", "time_to_first_token_p99", "<=", 2000),
        ("TPOT_P95<30ms", "inter_token_latency_p95", "<", 30),
        ("itl_mean<30000us", "inter_chunk_latency_avg", "<", 30),
        ("latency_median<1e3", "request_latency_p50", "<", 1000),
        ("time_to_first_output_token_max<9s", "time_to_first_output_token_max", "<", 9000),
        ("error_rate<1%", "request_error_rate", "<", 1),
        ("rps>=2.5req/s", "request_throughput", ">=", 2.5),
        ("tps>2000tok/s", "output_token_throughput", ">", 2000),
        ("tps_per_user_p5>20", "output_token_throughput_per_user_p5", ">", 20),
        ("benchmark_duration<2min", "benchmark_duration", "<", 120),
        ("p99_ttft_ms<500", "time_to_first_token_p99", "<", 500),
        ("mean_e2el_ms<2000", "request_latency_avg", "<", 2000),
        ("errors<=3", "error_request_count", "<=", 3),
        ("duration<2min", "benchmark_duration", "<", 120),
        ("good_request_fraction>=95%", "good_request_fraction", ">=", 0.95),
    ],
)
def test_an_objective_names_metric_statistic_and_limit(text: str, name: str, comparison: str, limit: float) -> None:
    (objective,) = parse_slo(text)
    assert (objective.name, objective.comparison) == (name, comparison)
    assert objective.limit == pytest.approx(limit)


def test_objectives_stand_between_commas() -> None:
    assert [o.text for o in parse_slo("ttft_p99<500ms, tpot_p95<30ms;error_rate<=0,")] == [
        "ttft_p99<500ms",
        "tpot_p95<30ms",
        "error_rate<=0",
    ]


def test_a_time_without_a_unit_is_shown_with_it() -> None:
    shown = [o.text for o in parse_slo("p90_latency < 20, tpot_p95<30us, duration<90, osl_p50>=10")]
    assert shown == ["p90_latency < 20ms", "tpot_p95<30us", "duration<90s", "osl_p50>=10"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there is no objective"),
        (" , ", "there is no objective"),
        ("ttft_p99", "is not of the form"),
        ("ttft_p99=5", "is not of the form"),
        ("ttft<5ms", "ttft has many values in a run: choose a statistic"),
        ("ttft_p98<5ms", "there is no statistic 'p98'"),
        ("nothing_p99<5ms", "there is no metric 'nothing_p99'"),
        ("throughput_p99>3", "throughput has one value for the whole run and no p99"),
        ("ttft_p99<5 parsec", "'parsec' is not a unit of it; known units: ms, s"),
        ("ttft_p99<nan", "is not a number with a unit"),
        ("ttft_p99<1e999", "is not a number from 0 up"),
        ("ttft_p99<-3", "is not a number from 0 up"),
        ("error_rate<1ms", "'ms' is not a unit of it; known units: %"),
    ],
)
def test_what_says_nothing_is_refused_in_words(text: str, said: str) -> None:
    with pytest.raises(SloError) as caught:
        parse_slo(text)
    assert said in str(caught.value)


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(SloError) as caught:
        parse_slo("ttft<5ms, tpot_p95<30ms, nothing>3")
    assert len(caught.value.problems) == 2


def test_a_run_is_judged_by_what_it_measured() -> None:
    run = metrics({"time_to_first_token": [100.0] * 99 + [900.0]}, {"request_error_rate": 0.0})
    objectives = parse_slo("ttft_p50<100ms, ttft_p50<=100ms, ttft_max<1s, error_rate<1%, tpot_p95<30ms")
    verdicts = judge(objectives, run)
    assert [verdict.met for verdict in verdicts] == [False, True, True, True, False]
    assert [verdict.load for verdict in verdicts] == [1.0, 1.0, 0.9, 0.0, float("inf")]
    assert str(verdicts[2]) == "ttft_max<1s: 900 ms, met"
    assert str(verdicts[4]) == "tpot_p95<30ms: not measured"


def test_more_throughput_than_asked_uses_less_of_the_limit() -> None:
    (verdict,) = judge(parse_slo("rps>=5"), metrics({}, {"request_throughput": 10.0}))
    assert verdict.met
    assert verdict.load == 0.5


@given(
    tag=st.sampled_from([*PER_REQUEST, *PER_CONVERSATION, *WHOLE_RUN]),
    statistic=st.sampled_from(list(STATISTICS)),
    comparison=st.sampled_from(["<", "<=", ">", ">="]),
    limit=st.floats(0, 1e9),
)
def test_every_metric_of_the_catalogue_can_be_named(tag: str, statistic: str, comparison: str, limit: float) -> None:
    name = tag if tag in WHOLE_RUN else f"{tag}_{statistic}"
    (objective,) = parse_slo(f"{name}{comparison}{limit!r}")
    assert (objective.metric.tag, objective.comparison, objective.limit) == (tag, comparison, limit)
    assert objective.met_by(limit) == (comparison in ("<=", ">="))


@given(st.text(alphabet="ttfpo_9<>=m s,.%10-e/u", max_size=40))
def test_any_text_is_understood_or_refused(text: str) -> None:
    with contextlib.suppress(SloError):
        assert parse_slo(text)
