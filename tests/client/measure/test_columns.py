"""Metrics on arrays: the same as request by request, and the figures that only a whole run has, by hand."""

import numpy as np
import pytest
from column_records import NAN, record
from drawn_records import records
from hypothesis import given
from hypothesis import strategies as st

from llmirage_client.measure.breakdowns import summaries
from llmirage_client.measure.columns import columns_of, filled
from llmirage_client.measure.metrics import compute, compute_columns
from llmirage_client.measure.record import Record, RunResult
from llmirage_client.measure.request_metrics import chunk_gaps_ms, chunk_gaps_of, request_columns, request_metrics
from llmirage_shared.statistics import PERCENTILES, summarize


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
    "credit_to_start_latency", "effective_latency", "usage_prompt_tokens_diff_pct", "usage_completion_tokens_diff_pct",
    "first_turn_time_to_first_token", "subsequent_turn_time_to_first_token",
}  # fmt: skip


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
