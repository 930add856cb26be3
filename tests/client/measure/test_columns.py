"""Metrics on arrays: the same as request by request, and the figures that only a whole run has, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmirage_client.measure.columns import Columns, columns_of, filled
from llmirage_client.measure.conversations import conversations
from llmirage_client.measure.goodput import good_requests, parse_goodput
from llmirage_client.measure.groups import summaries
from llmirage_client.measure.metrics import compute, compute_columns
from llmirage_client.measure.over_time import levels, statistics
from llmirage_client.measure.record import Exchange, Record, RequestError, RunResult
from llmirage_client.measure.request_metrics import chunk_gaps_ms, chunk_gaps_of, request_columns, request_metrics
from llmirage_client.measure.time_slices import time_slices
from llmirage_client.measure.workload_throughput import cached_or_estimated, timeline
from llmirage_shared.statistics import PERCENTILES, summarize

NAN = float("nan")


def record(
    conversation: str = "x",
    turn: int = 0,
    start_s: float = 0.0,
    token_s: tuple[float, ...] = (),
    usage: tuple[int, int, int | None] | None = None,
    **changes: object,
) -> Record:
    counts = None
    if usage is not None:
        counts = {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
        if usage[2] is not None:
            counts["prompt_tokens_details"] = {"cached_tokens": usage[2]}  # type: ignore[assignment]
    end_s = token_s[-1] + 0.5 if token_s else start_s + 1.0
    first = token_s[0] if token_s else None
    exchange = Exchange(start_s, start_s, end_s, list(token_s), first, 200, True, usage=counts)
    one = Record(0, "c", turn, "r", conversation, conversation, None, 0, start_s, exchange)
    return replace(one, **changes)  # type: ignore[arg-type]


times = st.floats(0, 100).map(lambda s: round(s, 3))


counts = st.integers(0, 1000)
maybe = st.none() | counts
made = st.tuples(  # once for all: strategies made anew for every record would cost more than what is tested
    st.sampled_from("abc"),
    st.integers(0, 3),
    times,
    st.lists(st.floats(0.001, 9), max_size=5),
    st.none() | st.tuples(counts, counts, maybe),
    st.fixed_dictionaries(
        {
            "input_tokens": maybe,
            "output_tokens": maybe,
            "output_tokens_asked": maybe,
            "cancelled": st.booleans(),
            "phase": st.sampled_from(["profiling", "profiling", "warmup"]),
        }
    ),
    times,
    st.booleans(),
    st.integers(0, 3),
    maybe,
)


@st.composite
def records(draw: st.DrawFn) -> Record:
    conversation, turn, start_s, gaps, usage, changes, late_s, streamed, failed, reasoning = draw(made)
    stamps = tuple(start_s + sum(gaps[: i + 1]) for i in range(len(gaps)))
    one = record(conversation, turn, start_s, stamps, usage, issued_s=start_s - late_s, **changes)
    one.exchange.streamed = streamed
    if reasoning is not None:
        one.exchange.usage = {**(one.exchange.usage or {}), "completion_tokens_details": {"reasoning_tokens": reasoning}}
    if failed == 0:
        one.exchange.error = RequestError(500, "http_error", "no")
    return one


@settings(deadline=None)
@given(st.lists(records(), max_size=12), st.sampled_from([1.0, 7.5]))
def test_arrays_have_the_values_of_each_request_bit_for_bit(run: list[Record], speed: float) -> None:
    columns = columns_of(run)
    found = request_columns(columns, speed)
    for row, one in enumerate(run):
        wanted = request_metrics(one, speed)
        here = {tag: v[row] for tag, v in found.items() if tag not in OF_RUNS and not np.isnan(v[row])}
        assert here == wanted
    gaps = [gap for one in run for gap in chunk_gaps_of(one, speed).tolist()]
    assert chunk_gaps_ms(columns, speed).tolist() == gaps


OF_RUNS = {
    "credit_to_start_latency",
    "effective_latency",
    "usage_prompt_tokens_diff_pct",
    "usage_completion_tokens_diff_pct",
    "first_turn_time_to_first_token",
    "subsequent_turn_time_to_first_token",
}


@settings(deadline=None)
@given(st.lists(records(), max_size=12), st.sampled_from([1.0, 7.5]))
def test_metrics_that_only_runs_have(run: list[Record], speed: float) -> None:
    found = request_columns(columns_of(run), speed)
    for row, one in enumerate(run):
        own = request_metrics(one, speed)
        wanted: dict[str, float] = {}
        if one.ok:
            assert one.exchange.end_s is not None
            wanted["credit_to_start_latency"] = (one.exchange.start_s - one.issued_s) * speed * 1e3
            wanted["effective_latency"] = (one.exchange.end_s - one.issued_s) * speed * 1e3
            for tag, ours in (("usage_prompt_tokens", one.input_tokens), ("usage_completion_tokens", one.output_tokens)):
                if ours and tag in own:
                    wanted[f"{tag}_diff_pct"] = 100 * abs(own[tag] - ours) / ours
        if any(other.turn_index for other in run) and "time_to_first_token" in own:
            place = "subsequent" if one.turn_index else "first"
            wanted[f"{place}_turn_time_to_first_token"] = own["time_to_first_token"]
        here = {tag: v[row] for tag, v in found.items() if tag in OF_RUNS and not np.isnan(v[row])}
        assert here == pytest.approx(wanted, rel=1e-9, abs=1e-6)


@settings(deadline=None)
@given(st.lists(records(), max_size=12))
def test_no_run_makes_a_figure_that_cannot_be(run: list[Record]) -> None:
    metrics = compute(RunResult(run, None, 0.0, 200.0, 0.0, options={"goodput": "ttft:500"}))
    for tag in ("conversation_cache_hit_pct", "conversation_eligible_cache_hit_pct"):
        if tag in metrics.per_conversation:
            assert 0 <= metrics.per_conversation[tag].min <= metrics.per_conversation[tag].max <= 100 + 1e-9
    assert metrics.whole_run["good_request_count"] <= metrics.whole_run["request_count"]
    for level in metrics.over_time.values():
        assert 0 <= level.min <= level.avg <= level.max
        assert level.p50 <= level.p90 <= level.p99 <= level.max
    concurrency = metrics.over_time.get("effective_concurrency")
    if concurrency is not None:
        assert concurrency.max <= len(run)
    assert sum(g.ok + g.failed + g.cancelled for g in metrics.by_turn) == sum(r.phase == "profiling" for r in run)


values = st.lists(st.tuples(st.floats(-1e6, 1e6) | st.just(NAN), st.integers(0, 4)), max_size=40)


@given(values)
def test_groups_are_summarised_as_each_alone_would_be(rows: list[tuple[float, int]]) -> None:
    column, group = np.array([v for v, _ in rows]), np.array([g for _, g in rows], dtype=np.int64)
    for number, found in enumerate(summaries(column, group, 5)):
        own = column[group == number]
        wanted = summarize(own[~np.isnan(own)])
        if wanted is None:
            assert found is None
        else:
            assert found is not None
            assert found.as_dict() == pytest.approx(wanted.as_dict(), rel=1e-9, abs=1e-6)
            percentiles = [f"p{p}" for p in PERCENTILES]
            assert [getattr(found, name) for name in percentiles] == [getattr(wanted, name) for name in percentiles]


def test_columns_of_what_is_known_are_those_of_plain_requests() -> None:
    columns = filled(np.array([1.0, 2.0]), first_s=np.array([1.5, NAN]), last_s=np.array([3.0, NAN]))
    assert columns.end_s.tolist() == [3.0, 2.0]
    assert columns.events.tolist() == [2, 0]
    assert columns.conversation.tolist() == [0, 1]
    assert columns.continues.tolist() == [-1, -1]
    assert columns.ok.all()
    assert compute_columns(columns).per_request["time_to_first_token"].avg == 500.0
    with pytest.raises(ValueError, match="last_s has the shape"):
        filled(np.array([1.0, 2.0]), last_s=np.array([3.0]))
    with pytest.raises(TypeError, match="lst_s"):
        filled(np.array([1.0, 2.0]), lst_s=np.array([3.0, 4.0]))


def test_a_part_of_the_rows_keeps_its_stamps_and_what_it_continues() -> None:
    whole = columns_of(
        [
            record("a", 0, 0.0, (1.0, 2.0)),
            record("b", 0, 5.0, (6.0,), phase="warmup"),
            record("a", 1, 10.0, (11.0, 12.0, 14.0)),
            record("a", 2, 20.0, (21.0,)),
        ]
    )
    assert whole.continues.tolist() == [-1, -1, 0, 2]
    part = whole.rows(whole.measured)
    assert part.continues.tolist() == [-1, 0, 1]
    assert part.stamps_s is not None
    assert part.stamps_s.tolist() == [1.0, 2.0, 11.0, 12.0, 14.0, 21.0]
    assert chunk_gaps_ms(part).tolist() == [1000.0, 1000.0, 2000.0]
    last = whole.rows(np.array([False, False, False, True]))
    assert last.continues.tolist() == [-1]


def test_a_fork_continues_its_parents_turn_and_a_spawn_nothing() -> None:
    child = {"parent_correlation_id": "p", "agent_depth": 1, "parent_turn_index": 1}
    columns = columns_of(
        [
            record("p", 0, 0.0, (1.0,)),
            record("p", 1, 2.0, (3.0,)),
            record("f", 0, 4.0, (5.0,), branch_mode="fork", **child),
            record("f", 1, 6.0, (7.0,), branch_mode="fork", **child),
            record("s", 0, 4.0, (5.0,), branch_mode="spawn", **child),
        ]
    )
    assert columns.continues.tolist() == [-1, 0, 1, 2, -1]


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
    run = [
        record("a", 0, 1.0, (2.0,), usage=(10, 2, 0)),
        record("a", 1, 5.0, (6.0,), usage=(20, 2, 6)),
        failed,
    ]
    metrics = compute(RunResult(run, None, 0.0, 30.0, 0.0))
    assert "conversation_latency" not in metrics.per_conversation
    assert metrics.per_conversation["conversation_cache_hit_pct"].avg == pytest.approx(20.0)  # 6 of 30
    assert metrics.per_conversation["conversation_eligible_cache_hit_pct"].avg == pytest.approx(50.0)  # 6 of 12
    assert metrics.per_conversation["conversation_turns"].avg == 2


def test_a_conversation_that_was_cut_short_has_no_latency() -> None:
    run = [
        record("a", 0, 1.0, (2.0,), turns=2),
        record("b", 0, 1.0, (2.0,), turns=2),
        record("b", 1, 3.0, (5.0,), turns=2),
    ]
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
        np.array([0.0, 2.0]),
        first_s=np.array([1.0, 4.0]),
        last_s=np.array([3.0, 5.0]),
        end_s=np.array([4.0, 6.0]),
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
    assert levels(columns, None, None, speed=2.0)["effective_concurrency"].avg == pytest.approx(8 / 6)
    twice = levels(columns, np.array([10.0, 40.0]), np.array([6.0, 5.0]), speed=2.0)
    assert twice["effective_prefill_throughput"].avg == pytest.approx(25 / 6)


def test_a_level_is_weighted_by_how_long_it_lasted() -> None:
    level = statistics(np.array([1.0, 100.0, 3.0]), np.array([8.0, 1.0, 1.0]))
    assert level is not None
    assert (level.avg, level.min, level.max, level.p50, level.p90, level.p99) == (11.1, 1.0, 100.0, 1.0, 3.0, 100.0)
    assert statistics(np.array([1.0]), np.array([0.0])) is None


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
