"""Figures that only a whole run has, by hand."""

from dataclasses import replace

import numpy as np
import pytest
from column_records import NAN, record

from llmirage_client.measure.breakdowns import cached_or_estimated, levels, mean_in_flight, statistics, timeline
from llmirage_client.measure.columns import Columns, columns_of, filled
from llmirage_client.measure.metrics import compute, conversations, time_slices
from llmirage_client.measure.record import RequestError, RunResult
from llmirage_client.measure.request_metrics import good_requests, parse_goodput, request_columns


def both(columns: Columns, speed: float = 1.0) -> dict[str, list[float]]:
    found = request_columns(columns, speed)
    empty = np.full(len(columns), NAN)
    cached = found.get("usage_prompt_cache_read_tokens", empty)
    rows = conversations(columns, found["input_sequence_length"], found["output_sequence_length"], cached, speed)
    return {name: getattr(rows, name).tolist() for name in rows.__slots__}


def test_a_conversation_by_hand() -> None:
    columns = columns_of(
        [
            record("a", 1, 10.0, (11.0, 11.5, 13.0), usage=(30, 3, 16)),  # out of order in the file
            record("a", 0, 1.0, (3.0, 4.0), usage=(10, 5, 0)),
            record("b", 0, 2.0, (2.5, 3.5), usage=(40, 2, None)),
        ]
    )
    found = both(columns, speed=2.0)
    assert found["turns"] == [2, 1]
    assert found["latency_s"] == [24.0, 3.0]  # from 1 to 13 and from 2 to 3.5, twice as long in cluster time
    assert found["first_turn_ttft_s"] == [4.0, 1.0]
    assert found["ttfat_s"] == [20.0, 1.0]  # from 1 to 11
    # (5 - 1) / 2 s and (3 - 1) / 4 s of cluster time; (2 - 1) / 2 s
    assert found["decode_tokens_per_s"] == [(2.0 + 0.5) / 2, 0.5]
    assert found["cache_hit"] == pytest.approx([16 / 40, NAN], nan_ok=True)
    assert found["eligible_cache_hit"] == pytest.approx([1.0, NAN], nan_ok=True)  # 15 of 10 + 5; the 16th is new content


def test_a_conversation_with_a_failure_has_hit_rates_and_no_latency() -> None:
    failed = record("a", 2, 20.0, ())
    failed.exchange.error = RequestError(500, "http_error", "no")
    run = [record("a", 0, 1.0, (2.0,), usage=(10, 2, 0)), record("a", 1, 5.0, (6.0,), usage=(20, 2, 6)), failed]
    metrics = compute(RunResult(run, None, 0.0, 30.0, 0.0))
    assert "conversation_latency" not in metrics.per_conversation
    assert metrics.per_conversation["conversation_cache_hit_pct"].avg == pytest.approx(20.0)  # 6 of 30
    assert metrics.per_conversation["conversation_eligible_cache_hit_pct"].avg == pytest.approx(50.0)  # 6 of 12
    assert metrics.per_conversation["conversation_turns"].avg == 2


def test_a_conversation_that_was_cut_short_has_no_latency() -> None:
    run = [record("a", 0, 1.0, (2.0,), turns=2), record("b", 0, 1.0, (2.0,), turns=2), record("b", 1, 3.0, (5.0,), turns=2)]
    metrics = compute(RunResult(run, None, 0.0, 30.0, 0.0))
    assert metrics.per_conversation["conversation_latency"].count == 1
    assert metrics.per_conversation["conversation_latency"].avg == 4000.0
    assert metrics.per_conversation["conversation_turns"].count == 2


def test_conversations_without_eligible_tokens_are_not_zero() -> None:
    run = [record(name, 0, 0.0, (1.0,), usage=(10, 2, 4)) for name in "abc"]
    metrics = compute(RunResult(run, None, 0.0, 30.0, 0.0))
    assert "conversation_eligible_cache_hit_pct" not in metrics.per_conversation
    assert "first_turn_time_to_first_token" not in metrics.per_request
    assert metrics.per_conversation["conversation_cache_hit_pct"].count == 3


def test_first_and_later_turns_have_ttfts_of_their_own() -> None:
    run = [record("a", 0, 0.0, (2.0,)), record("a", 1, 3.0, (4.0,)), record("a", 2, 5.0, (5.5,))]
    metrics = compute(RunResult(run, None, 0.0, 30.0, 0.0))
    assert metrics.per_request["first_turn_time_to_first_token"].avg == 2000.0
    assert metrics.per_request["subsequent_turn_time_to_first_token"].avg == 750.0


def test_levels_by_hand() -> None:
    # A: 0 to 4, first token at 1, last at 3. B: 2 to 6, first at 4, last at 5.
    columns = filled(
        np.array([0.0, 2.0]), first_s=np.array([1.0, 4.0]), last_s=np.array([3.0, 5.0]), end_s=np.array([4.0, 6.0])
    )
    found = levels(columns, np.array([10.0, 40.0]), np.array([6.0, 5.0]))
    assert found["effective_concurrency"].avg == pytest.approx(8 / 6)
    assert (found["effective_concurrency"].max, found["effective_concurrency"].p50) == (2, 1)
    assert found["effective_prefill_concurrency"].avg == pytest.approx(3 / 6)
    assert found["effective_decode_concurrency"].avg == pytest.approx(3 / 6)
    assert found["effective_prefill_throughput"].avg == pytest.approx(50 / 6)
    assert found["effective_prefill_throughput"].max == pytest.approx(20.0)  # B: 40 tokens in 2 s; A: 10 in 1 s
    assert found["effective_decode_throughput"].avg == pytest.approx(11 / 6)
    assert found["active_prefill_throughput"].avg == pytest.approx(50 / 3)  # A until 1, B from 2 to 4
    assert found["active_decode_throughput"].avg == pytest.approx(11 / 3)
    assert found["effective_total_throughput"].avg == pytest.approx(61 / 6)
    assert found["active_total_throughput"].avg == pytest.approx(61 / 6)  # one of them is there at all times
    assert found["tokens_in_flight"].avg == pytest.approx((10 * 3 + 40 * 3 + 3 * 2 + 2.5 * 1) / 6)
    assert levels(columns, None, None, speed=2.0)["effective_concurrency"].avg == pytest.approx(8 / 6)
    twice = levels(columns, np.array([10.0, 40.0]), np.array([6.0, 5.0]), speed=2.0)
    assert twice["effective_prefill_throughput"].avg == pytest.approx(25 / 6)


def test_levels_are_means_over_the_phase_from_its_begin_to_its_end() -> None:
    """As the harness of AgentX has them: idle time before the first request and after the last reply counts."""
    run = [record("a", 0, 102.0, (103.0, 104.0), usage=(10, 2, 4)), record("b", 0, 103.0, (104.0,), usage=(20, 2, 4))]
    levels_of = compute(RunResult(run, None, 100.0, 110.0, 0.0)).over_time
    ends = sum(one.exchange.end_s - one.exchange.start_s for one in run if one.exchange.end_s is not None)
    assert levels_of["effective_concurrency"].avg == pytest.approx(ends / 10)
    assert levels_of["effective_prefill_throughput"].avg == pytest.approx((10 + 20) / 10)
    assert levels_of["active_prefill_throughput"].avg == pytest.approx((10 + 20) / 2)  # from 102 to 104
    assert levels_of["tokens_in_flight"].avg == pytest.approx((10 * 2 + 1 * 1 + 20 * 1) / 10)
    assert compute(RunResult([], None, 100.0, 110.0, 0.0)).over_time == {}
    cut = compute(RunResult(run, None, 103.5, 103.6, 0.0)).over_time["effective_concurrency"]  # requests count as a whole
    assert cut.avg == pytest.approx(ends / (max(one.exchange.end_s or 0.0 for one in run) - 102))


def test_the_throughput_of_a_user_is_shared_by_those_at_work() -> None:
    # A and B from 0, first tokens at 2 and 1, last at 4 and 3; C alone from 6, first at 7, last at 8.
    columns = filled(
        np.array([0.0, 0.0, 6.0]), first_s=np.array([2.0, 1.0, 7.0]), last_s=np.array([4.0, 3.0, 8.0]),
        end_s=np.array([5.0, 4.0, 8.0]),
    )  # fmt: skip
    found = levels(columns, np.array([20.0, 30.0, 5.0]), np.array([8.0, 12.0, NAN]))
    assert found["effective_prefill_throughput_per_user"].avg == pytest.approx((20 + 10 + 5) / 8)
    assert found["active_prefill_throughput_per_user"].avg == pytest.approx((20 + 10 + 5) / 3)
    assert found["effective_decode_throughput_per_user"].avg == pytest.approx((6 + 5 + 4) / 8)
    assert found["active_decode_throughput_per_user"].avg == pytest.approx((6 + 5 + 4) / 4)  # the tokens of C are unknown
    assert found["active_total_throughput"].avg == pytest.approx((20 + 30 + 5 + 8 + 12) / 7)  # nothing from 5 to 6


def test_a_level_is_weighted_by_how_long_it_lasted() -> None:
    level = statistics(np.array([1.0, 100.0, 3.0]), np.array([8.0, 1.0, 1.0]))
    assert level is not None
    assert (level.avg, level.min, level.max, level.p50, level.p90, level.p99) == (11.1, 1.0, 100.0, 1.0, 3.0, 100.0)
    assert statistics(np.array([1.0]), np.array([0.0])) is None


def test_the_mean_in_flight_is_that_of_all_moments() -> None:
    columns = filled(np.array([0.0, 1.0, 3.0]), end_s=np.array([2.0, 1.5, NAN]))
    assert mean_in_flight(columns, np.array([0.0, 1.0, 2.0, 4.0, 5.0])).tolist() == [1.0, 1.5, 0.5, 1.0]


def test_token_rates_by_hand() -> None:
    # Ends at 10, 20, ... 100 s; 10 prompt tokens, 4 of them cached, 2 output tokens each.
    ends = np.arange(10.0, 101.0, 10.0)
    columns = filled(np.zeros(10), last_s=ends, end_s=ends)
    line = timeline(columns, np.full(10, 10.0), np.full(10, 2.0), np.full(10, 4.0))
    rates = line.rates()
    assert line.wall_time_s == 100.0
    assert rates["total_prompt"].overall == 1.0
    assert rates["new_prompt"].overall == pytest.approx(0.6)
    assert rates["completion"].last_window == pytest.approx(6 / 30)  # ends at 80, 90, 100 after the point at 70
    assert rates["cached_prompt"].steady_state == pytest.approx(32 / 80)  # after the point at 20
    short = timeline(filled(np.zeros(1), last_s=np.array([5.0])), np.array([10.0]), np.array([2.0]), np.array([99.0]))
    assert short.rates()["cached_prompt"].overall == 2.0  # never more than the prompt
    assert short.rates()["completion"].last_window == short.rates()["completion"].steady_state == 0.4
    assert timeline(filled(np.empty(0)), np.empty(0), np.empty(0), np.empty(0)).rates() == {}


def test_cached_tokens_are_estimated_where_no_server_counts_them() -> None:
    columns = filled(np.array([0.0, 2.0, 0.0]), conversation=np.array([0, 0, 1]), turn_index=np.array([0, 1, 0]))
    prompt, completion = np.array([10.0, 30.0, 8.0]), np.array([5.0, 5.0, 5.0])
    estimate, source = cached_or_estimated(columns, prompt, completion, None)
    assert (estimate.tolist(), source) == ([0.0, 15.0, 0.0], "estimated")
    mixed, source = cached_or_estimated(columns, prompt, completion, np.array([4.0, NAN, 99.0]))
    assert (mixed.tolist(), source) == ([4.0, 15.0, 8.0], "mixed")
    shorter, _ = cached_or_estimated(columns, np.array([10.0, 12.0, 8.0]), completion, None)
    assert shorter.tolist() == [0.0, 12.0, 0.0]


def test_counts_of_server_and_client_are_compared() -> None:
    run = [
        record("a", 0, 0.0, (1.0,), usage=(90, 50, None), input_tokens=100),
        record("b", 0, 0.0, (1.0,), usage=(120, 50, None), input_tokens=100),
        record("c", 0, 0.0, (1.0,), usage=(100, 40, None), input_tokens=100, output_tokens=50),
        record("d", 0, 0.0, (1.0,), usage=(100, 40, None)),
    ]
    metrics = compute(RunResult(run, None, 0.0, 9.0, 0.0))
    assert metrics.per_request["usage_prompt_tokens_diff_pct"].avg == pytest.approx(10.0)  # 10, 20 and 0
    assert metrics.per_request["usage_completion_tokens_diff_pct"].avg == pytest.approx(20.0)
    assert metrics.whole_run["usage_discrepancy_count"] == 2
    assert metrics.whole_run["total_isl"] == 410  # the server's counts


def test_a_schedule_that_was_not_kept_says_so() -> None:
    run = [record(name, 0, at, (at + 1,), issued_s=at - late) for name, at, late in (("a", 1.0, 0.1), ("b", 2.0, 0.9))]
    whole = compute(RunResult(run, None, 0.0, 9.0, 0.0, options={"fixed_schedule": True})).whole_run
    assert whole["replay_sched_lag_p50"] == pytest.approx(400.0)
    assert whole["replay_sched_lag_p99"] == pytest.approx(792.0)
    assert whole["replay_sched_degraded"] == 1
    assert "replay_sched_degraded" not in compute(RunResult(run, None, 0.0, 9.0, 0.0)).whole_run


def test_goodput_by_hand() -> None:
    run = [
        record("a", 0, 0.0, (0.1, 0.2), usage=(1, 2, None)),  # ttft 100, tpot 100
        record("b", 0, 0.0, (0.3, 0.4), usage=(1, 2, None)),  # ttft too long
        record("c", 0, 0.0, (0.1, 0.4), usage=(1, 2, None)),  # tpot too long
        record("d", 0, 0.0, (0.1,), usage=(1, 1, None)),  # one token: no tpot to be held to
        record("e", 0, 0.0, (0.1, 0.2), cancelled=True),
    ]
    run[0].exchange.end_s = 2.0
    columns, limits = columns_of(run), parse_goodput("ttft:200 tpot:150")
    assert good_requests(columns, request_columns(columns), limits).tolist() == [True, False, False, True, False]
    whole = compute(RunResult(run, None, 0.0, 9.0, 0.0, options={"goodput": "ttft:200 tpot:150"})).whole_run
    assert (whole["good_request_count"], whole["good_request_fraction"]) == (2, 0.5)
    assert whole["goodput"] == pytest.approx(2 / 0.4)
    fast = parse_goodput("output_token_throughput_per_user:9")
    assert good_requests(columns, request_columns(columns), fast).tolist() == [True, True, False, True, False]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no objective given"),
        ("ttft", "expected ttft:LIMIT"),
        ("ttft:x", "expected ttft:LIMIT"),
        ("ttft:-1", "a limit above zero in ms"),
        ("ttft:nan", "a limit above zero in ms"),
        ("speed:3", "no metric of single requests is called 'speed'"),
        ("inter_chunk_latency:3", "no metric of single requests"),
        ("ttft:3 time_to_first_token:4", "has a limit already"),
    ],
)
def test_nonsense_is_no_goodput(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_goodput(text)


def test_a_request_belongs_to_the_slice_it_started_in() -> None:
    run = [record(name, 0, at, (at + 1.0,)) for name, at in (("a", 100.0), ("b", 104.9), ("c", 105.0), ("d", 121.0))]
    slices = time_slices(columns_of(run), 5.0)
    assert [(s.index, s.start_s, s.end_s, s.metrics.whole_run["request_count"]) for s in slices] == [
        (0, 0.0, 5.0, 2),
        (1, 5.0, 10.0, 1),
        (4, 20.0, 25.0, 1),
    ]
    assert [s.index for s in time_slices(columns_of(run), 5.0, speed=2.0)] == [0, 1, 2, 8]
    assert time_slices(columns_of([]), 5.0) == []
    with pytest.raises(ValueError, match="must be above 0"):
        time_slices(columns_of(run), 0.0)
    with pytest.raises(ValueError, match="4 is the most"):
        time_slices(columns_of([record("a", 0, at, ()) for at in range(6)]), 1.0, most=4)


def test_the_client_says_when_it_was_the_bottleneck() -> None:
    run = [record("a", 0, 1.0, (1.1,), issued_s=0.9), record("b", 0, 5.0, (5.1,))]

    def cost(**changes: object) -> object:
        client = compute(replace(RunResult(run, None, 0.0, 10.0, 0.0), **changes)).client  # type: ignore[arg-type]
        assert client is not None
        return client.late, client.busy, client.was_bottleneck, client.sends_late_max_ms

    assert cost() == (True, False, True, pytest.approx(100.0))  # a request left 100 ms late
    held_back = {"fixed_schedule": True, "concurrency": 1}
    assert cost(options=held_back) == (False, False, False, None)  # it was the slot that it waited for
    assert cost(options={"fixed_schedule": True, "concurrency": None})[0] is True  # type: ignore[index]
    assert cost(records=run[1:]) == (False, False, False, pytest.approx(0.0))
    assert cost(records=run[1:], client_lag_s=(0.0, 0.5)) == (True, False, True, pytest.approx(0.0))
    assert cost(records=run[1:], client_cpu_s=9.0) == (False, True, True, pytest.approx(0.0))
    assert cost(records=run[1:], client_cpu_s=None) == (False, False, False, pytest.approx(0.0))
    assert cost(records=[]) == (False, False, False, None)
