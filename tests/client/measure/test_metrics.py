"""Every metric of a request and of a run, on records small enough to do by hand."""

from typing import Any

import pytest

from llmirage_client.measure.catalogue import OVER_TIME, PER_CONVERSATION, PER_REQUEST, TOTALS, WHOLE_RUN
from llmirage_client.measure.metrics import Metrics, compute
from llmirage_client.measure.record import USAGE_TAGS, Exchange, Record, RequestError, RunResult
from llmirage_client.measure.request_metrics import chunk_gaps_of, request_metrics


def usage(prompt: int, completion: int, cached: int | None = None, reasoning: int | None = None) -> dict[str, Any]:
    counts: dict[str, Any] = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    if cached is not None:
        counts["prompt_tokens_details"] = {"cached_tokens": cached}
    if reasoning is not None:
        counts["completion_tokens_details"] = {"reasoning_tokens": reasoning}
    return counts


def record(
    start_s: float = 10.0,
    token_s: tuple[float, ...] = (),
    *,
    streamed: bool = True,
    usage: dict[str, Any] | None = None,
    error: RequestError | None = None,
    cancelled: bool = False,
    depth: int = 0,
    turn: int = 0,
    phase: str = "profiling",
    input_tokens: int | None = None,
    end_s: float | None = None,
    first_output_s: float | None = None,
) -> Record:
    exchange = Exchange(
        start_s=start_s,
        ack_s=start_s,
        end_s=end_s if end_s is not None else (token_s[-1] if token_s else start_s),
        token_s=list(token_s),
        first_output_s=first_output_s if first_output_s is not None else (token_s[0] if token_s else None),
        status=200,
        streamed=streamed,
        usage=usage,
        error=error,
    )
    return Record(0, "c", turn, "r", "x", "x", None, depth, start_s, exchange, phase, cancelled, input_tokens)


def measured(*records: Record, speed: float = 1.0) -> Metrics:
    return compute(RunResult(list(records), None, start_s=0.0, end_s=100.0, start_unix_s=0.0, speed=speed))


STREAM = (10.5, 10.75, 11.0, 11.5)  # sent at 10: first token after 0.5 s, last after 1.5 s


def test_a_streamed_request_by_hand() -> None:
    assert request_metrics(record(10.0, STREAM, usage=usage(100, 5, cached=80, reasoning=2), first_output_s=11.0)) == {
        "time_to_first_token": 500.0,
        "time_to_second_token": 250.0,
        "time_to_first_output_token": 1000.0,
        "request_latency": 1500.0,
        "decode_duration": 1000.0,
        "full_decode_duration": 1000.0,
        "inter_token_latency": 250.0,  # (1500 - 500) / (5 - 1)
        "full_response_inter_token_latency": 250.0,
        "output_token_throughput_per_user": 4.0,
        "full_response_output_token_throughput_per_user": 4.0,
        "e2e_output_token_throughput": 5 / 1.5,
        "prefill_throughput_per_user": 200.0,
        "input_sequence_length": 100,
        "output_sequence_length": 5,
        "output_token_count": 3,
        "reasoning_token_count": 2,
        "usage_prompt_tokens": 100,
        "usage_completion_tokens": 5,
        "usage_total_tokens": 105,
        "usage_reasoning_tokens": 2,
        "usage_prompt_cache_read_tokens": 80,
    }


def test_the_phases_of_the_http_exchange_by_hand() -> None:
    one = record(10.0, STREAM, end_s=12.0)
    assert "http_req_waiting" not in request_metrics(one)
    one.exchange.body_s = 10.25  # such as an event with the role alone
    found = request_metrics(one, speed=2.0)
    assert [found[f"http_req_{phase}"] for phase in ("waiting", "receiving", "duration")] == [500.0, 3500.0, 4000.0]
    failed = record(11.0, STREAM)
    failed.exchange.body_s, failed.exchange.error = 11.1, RequestError(500, "http_error", "x")
    assert measured(one, failed).per_request["http_req_duration"].count == 1
    assert "http_req_waiting" not in measured(record(10.0, STREAM)).per_request


def test_the_gaps_between_chunks_are_all_of_them() -> None:
    assert chunk_gaps_of(record(10.0, STREAM)).tolist() == [250.0, 250.0, 500.0]
    assert chunk_gaps_of(record(10.0, STREAM, cancelled=True)).size == 0
    assert chunk_gaps_of(record(10.0, (12.0,), streamed=False)).size == 0


def test_latency_ends_with_the_last_content_and_not_with_the_end_of_the_stream() -> None:
    found = request_metrics(record(10.0, STREAM, usage=usage(100, 5), end_s=12.5), speed=2.0)
    assert (found["request_latency"], found["decode_duration"], found["inter_token_latency"]) == (3000.0, 2000.0, 500.0)
    assert (found["full_decode_duration"], found["full_response_inter_token_latency"]) == (4000.0, 1000.0)
    assert found["full_response_output_token_throughput_per_user"] == 1.0


STREAMING = {
    "time_to_first_token", "time_to_second_token", "time_to_first_output_token", "inter_token_latency",
    "output_token_throughput_per_user", "prefill_throughput_per_user",
}  # fmt: skip
PER_FURTHER_TOKEN = {"inter_token_latency", "output_token_throughput_per_user"}


@pytest.mark.parametrize(
    ("one", "values", "absent"),
    [
        pytest.param(
            record(10.0, (12.0,), streamed=False, usage=usage(100, 5)),
            {"request_latency": 2000.0, "e2e_output_token_throughput": 2.5},
            STREAMING,
            id="a reply in one piece",
        ),
        pytest.param(
            record(10.0, STREAM, input_tokens=64),
            {"output_sequence_length": 4, "inter_token_latency": 1000 / 3, "input_sequence_length": 64},
            set(USAGE_TAGS),
            id="without usage: the chunks, and what the workload said",
        ),
        pytest.param(
            record(10.0, STREAM, usage=usage(100, 5), input_tokens=64),
            {"input_sequence_length": 100},
            set(),
            id="usage wins over the client's count",
        ),
        pytest.param(
            record(10.0, (10.5,), usage=usage(100, 1)),
            {"time_to_first_token": 500.0, "request_latency": 500.0},
            {"inter_token_latency", "time_to_second_token"},
            id="one token",
        ),
        pytest.param(record(10.0, (10.5,), usage=usage(100, 50)), {}, PER_FURTHER_TOKEN, id="many tokens in one chunk"),
        pytest.param(
            record(10.0, (10.5, 10.5), usage=usage(100, 2)),
            {"inter_token_latency": 0.0},
            {"output_token_throughput_per_user"},
            id="chunks that arrive together",
        ),
    ],
)
def test_a_metric_without_a_basis_is_left_out(one: Record, values: dict[str, float], absent: set[str]) -> None:
    metrics = request_metrics(one)
    assert {tag: metrics[tag] for tag in values} == pytest.approx(values)
    assert not metrics.keys() & absent


@pytest.mark.parametrize(
    ("one", "tags"),
    [
        (record(10.0, (12.0,), streamed=False), {"request_latency"}),  # of unknown length
        (
            record(10.0, (), usage=usage(100, 0)),
            {
                "input_sequence_length", "output_sequence_length", "output_token_count", "usage_prompt_tokens",
                "usage_completion_tokens", "usage_total_tokens",
            },
        ),
        (record(10.0, STREAM, usage=usage(1, 2), error=RequestError(500, "server_error", "boom")), set()),
        (record(10.0, STREAM, usage=usage(1, 2), cancelled=True), set()),
    ],
)  # fmt: skip
def test_a_request_has_these_metrics_only(one: Record, tags: set[str]) -> None:
    assert set(request_metrics(one)) == tags


@pytest.mark.parametrize("odd", [None, "12", True, -1, 1.5])
def test_a_count_that_is_no_count_is_not_believed(odd: object) -> None:
    assert "usage_prompt_tokens" not in request_metrics(record(10.0, STREAM, usage={"prompt_tokens": odd}))


def test_cached_tokens_are_read_the_way_openai_and_anthropic_write_them() -> None:
    for counts in ({"prompt_tokens_details": {"cached_tokens": 7}}, {"cache_read_input_tokens": 7}):
        assert request_metrics(record(10.0, STREAM, usage=counts))["usage_prompt_cache_read_tokens"] == 7
    assert "usage_prompt_cache_read_tokens" not in request_metrics(
        record(10.0, STREAM, usage={"prompt_tokens_details": None})
    )


def test_times_are_the_clusters_when_it_runs_faster_than_life() -> None:
    plain = request_metrics(record(10.0, STREAM, usage=usage(100, 5)))
    fast = request_metrics(record(10.0, STREAM, usage=usage(100, 5)), speed=10.0)
    for tag, value in plain.items():
        factor = {"ms": 10.0, "tokens/sec/user": 0.1, "tokens": 1.0}[PER_REQUEST[tag].unit]
        assert fast[tag] == pytest.approx(value * factor)


def run_of_five() -> tuple[Record, ...]:
    """Two that succeed, one that fails, one cancelled, one of the warm-up."""
    return (
        record(10.0, STREAM, usage=usage(100, 5, cached=80)),
        record(11.0, (12.0, 12.5, 13.0), usage=usage(300, 3, cached=0), depth=1, turn=1),
        record(9.5, (), error=RequestError(503, "overloaded", "try later"), end_s=14.5, depth=1),
        record(1.0, (2.0, 3.0), cancelled=True, end_s=90.0),
        record(2.0, (3.0, 4.0), usage=usage(9999, 9999), phase="warmup"),
    )


def test_a_whole_run_by_hand() -> None:
    metrics = measured(*run_of_five())
    assert metrics.whole_run == {
        "request_count": 2,
        "error_request_count": 1,
        "cancelled_request_count": 1,
        "completed_request_count": 3,
        "conversation_count": 1,
        "request_error_rate": pytest.approx(100 / 3),
        "total_isl": 400,
        "total_osl": 8,
        "total_output_tokens": 8,
        "total_usage_prompt_tokens": 400,
        "total_usage_completion_tokens": 8,
        "total_usage_total_tokens": 408,
        "total_usage_prompt_cache_read_tokens": 80,
        "overall_usage_prompt_cache_read_pct": 20.0,
        "benchmark_duration": 5.0,  # from 9.5, the first one sent, to 14.5, the failure
        "request_throughput": 0.4,
        "input_token_throughput": 80.0,
        "output_token_throughput": 1.6,
        "total_token_throughput": 81.6,
    }
    assert metrics.per_request["time_to_first_token"].avg == 750.0
    assert metrics.per_request["time_to_first_token"].count == 2
    assert metrics.per_request["inter_chunk_latency"].count == 5
    assert metrics.per_request["inter_chunk_latency"].sum == 2000.0
    assert [(g.error.code, g.count) for g in metrics.errors] == [(503, 1)]
    assert (metrics.input_counted_by, metrics.output_counted_by) == ("server", "server")


def test_a_faster_cluster_has_a_longer_run_and_smaller_rates() -> None:
    fast = measured(*run_of_five(), speed=10.0).whole_run
    assert fast["benchmark_duration"] == 50.0
    assert fast["request_throughput"] == pytest.approx(0.04)
    assert fast["total_token_throughput"] == pytest.approx(8.16)
    assert fast["request_count"] == 2
    assert fast["overall_usage_prompt_cache_read_pct"] == 20.0


def test_depths_and_turns_split_the_run() -> None:
    metrics = measured(*run_of_five())
    roots, children = metrics.by_depth
    assert (roots.key, roots.ok, roots.failed, roots.cancelled) == (0, 1, 0, 1)
    assert (children.key, children.ok, children.failed, children.cancelled) == (1, 1, 1, 0)
    assert [group.per_request["time_to_first_token"].avg for group in (roots, children)] == [500.0, 1000.0]
    assert (roots.cached_pct, children.cached_pct) == (80.0, 0.0)
    assert [(g.key, g.ok + g.failed + g.cancelled) for g in metrics.by_turn] == [(0, 3), (1, 1)]


def test_a_run_where_everything_failed_has_counts_and_no_latency() -> None:
    metrics = measured(*(record(10.0 + i, error=RequestError(None, "connect", "refused"), end_s=11.0 + i) for i in range(3)))
    assert metrics.per_request == {}
    assert metrics.whole_run["request_error_rate"] == 100.0
    assert metrics.whole_run["request_throughput"] == 0.0
    assert [g.count for g in metrics.errors] == [3]
    assert "time_to_first_token" not in metrics.by_depth[0].per_request


def test_an_empty_run_has_counts_of_zero_and_nothing_else() -> None:
    metrics = measured()
    counts = ("request", "error_request", "cancelled_request", "completed_request", "conversation")
    assert metrics.whole_run == dict.fromkeys((f"{name}_count" for name in counts), 0)
    assert (metrics.per_request, metrics.by_depth, metrics.by_turn, metrics.errors) == ({}, (), (), ())


def test_the_cached_share_is_absent_when_no_server_reported_it() -> None:
    metrics = measured(record(10.0, STREAM, usage=usage(100, 5)))
    assert "overall_usage_prompt_cache_read_pct" not in metrics.whole_run
    assert metrics.by_depth[0].cached_pct is None


def test_who_counted_the_tokens_is_told() -> None:
    by_server, by_us = record(10.0, STREAM, usage=usage(100, 5)), record(10.0, STREAM, input_tokens=3)
    assert measured(by_us).output_counted_by == "client"
    assert measured(by_us, by_server).input_counted_by == "mixed"
    assert measured(record(10.0, STREAM)).input_counted_by == "unknown"


def test_errors_are_grouped_by_code_type_and_message_most_frequent_first() -> None:
    errors = [
        RequestError(500, "a", "x"),
        RequestError(500, "a", "y"),
        RequestError(500, "a", "y"),
        RequestError(None, "a", "y"),
    ]
    groups = measured(*(record(error=e) for e in errors)).errors
    assert (groups[0].error.message, groups[0].count) == ("y", 2)
    assert {(g.error.code, g.error.message, g.count) for g in groups[1:]} == {(500, "x", 1), (None, "y", 1)}


def test_every_metric_that_is_computed_is_in_the_catalogue() -> None:
    everything = usage(1, 4, 1, 2) | {"cache_creation_input_tokens": 3, "prompt_cache_miss_tokens": 1}
    everything["prompt_tokens_details"] |= {"audio_tokens": 1}
    everything["completion_tokens_details"] |= {
        "audio_tokens": 1,
        "accepted_prediction_tokens": 1,
        "rejected_prediction_tokens": 1,
    }
    last = record(10.0, STREAM, usage=everything)
    second = record(12.0, (13.0, 14.0), usage=usage(9, 2, cached=4), turn=1)
    last.output_tokens_asked, last.correlation_id, second.correlation_id = 5, "another", "another"
    failed = record(9.5, (), error=RequestError(503, "overloaded", "try later"), input_tokens=7)
    result = RunResult(
        [*run_of_five(), failed, last, second],
        None,
        0.0,
        100.0,
        0.0,
        options={"goodput": "ttft:600", "fixed_schedule": True},
    )
    last.input_tokens, last.output_tokens, last.exchange.body_s = 2, 3, 10.25
    metrics = compute(result)
    assert set(metrics.per_request) == set(PER_REQUEST)
    assert set(metrics.whole_run) == set(WHOLE_RUN)
    assert set(metrics.per_conversation) == set(PER_CONVERSATION)
    assert set(metrics.over_time) == set(OVER_TIME)
    assert set(TOTALS) <= set(WHOLE_RUN)
    assert set(TOTALS.values()) <= set(PER_REQUEST)
