"""AgentX: lanes over recorded trees, with sampled instants, primers, warm-ups, hand-over, idle caps and overflow."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmirage_client.load.any_runner import WarmUpError
from llmirage_client.load.options import LaneOptions
from llmirage_client.load.plays import sampled_instant_s, streams_of
from llmirage_client.measure.record import RequestError
from llmirage_client.workload.registry import load
from llmirage_client.workload.session import Session, Turn, Workload


def call(t: float, blocks: list[int], api: float = 0.5, out: int = 4) -> dict[str, Any]:
    return {"t": t, "type": "s", "model": "m", "in": 64 * len(blocks), "out": out, "hash_ids": blocks, "api_time": api}


def agent(name: str, t: float, end: float, calls: list[dict[str, Any]]) -> dict[str, Any]:
    return {"t": t, "type": "subagent", "agent_id": name, "duration_ms": (end - t) * 1e3, "requests": calls}


LINEAR = [call(2.0 * k, list(range(k + 2))) for k in range(5)]  # starts at 0, 2, 4, 6, 8
WITH_CHILD = [
    call(0.0, [1, 2]),
    agent("a", 1.0, 7.0, [call(1.0, [50]), call(3.0, [50, 51]), call(6.0, [50, 51, 52])]),
    call(8.0, [1, 2, 3]),
    call(10.0, [1, 2, 3, 4]),
]


def traces(folder: Path, **requests: list[dict[str, Any]]) -> Workload:
    for name, each in requests.items():
        about = {"id": name, "models": ["m"], "block_size": 64, "hash_id_scope": "local", "requests": each}
        (folder / f"{name}.json").write_text(json.dumps(about))
    return load(str(folder), options={"recorded_order": True})


def of(result: Any, phase: str) -> list[tuple[str, int, float]]:
    """Conversation, turn, and time since the first of the phase, in the order in which they went out."""
    found = sorted((r for r in result.records if r.phase == phase), key=lambda r: r.exchange.start_s)
    return [(r.conversation_id, r.turn_index, round(r.exchange.start_s - found[0].exchange.start_s, 3)) for r in found]


@pytest.fixture(name="lanes")
def run_lanes(bench: Any) -> Any:
    def run(workload: Workload, duration_s: float, target: Any = None, concurrency: int = 1, **options: Any) -> Any:
        asked = LaneOptions(run_id="r", **{"start_min": 0.0, "start_max": 0.0} | options)
        return bench.run(
            workload, target or bench.FakeTarget(reply_s=0.5), lanes=asked, concurrency=concurrency,
            benchmark_duration_s=duration_s, seed=7,
        )  # fmt: skip

    return run


def test_the_instant_is_that_of_the_harness() -> None:
    # AGENTX.md has these check values of uniform(0, 1)
    for seed, name, lane, share in ((7, "tr_a", 0, 0.1257386395067045), (42, "tr_a", 0, 0.7238572185799326)):
        root = Session(name, (Turn(recorded_s=10.0), Turn(recorded_s=11.0)))
        found = sampled_instant_s(streams_of(Workload("", "", {name: root}, (name,)), root), 0.0, 1.0, seed, lane)
        assert np.isclose(found, 10.0 + share, atol=1e-9)


def test_a_lane_begins_with_a_primer_and_recycles_from_the_first_turn(lanes: Any, tmp_path: Path) -> None:
    result, target = lanes(traces(tmp_path, one=LINEAR), 12.0, start_min=0.5, start_max=0.5)
    assert of(result, "warmup") == [("one", 1, 0.0)]
    # turns 2, 3, 4 with recorded pauses of 1.5 s, then the next play at once
    assert of(result, "profiling")[:5] == [
        ("one", 2, 0.0), ("one", 3, 2.0), ("one", 4, 4.0), ("one", 0, 4.5), ("one", 1, 6.5),
    ]  # fmt: skip
    limits = [sent.call.body["max_completion_tokens"] for sent in target.sent]
    assert limits == [1] + [4] * (len(limits) - 1)
    markers = [sent.label[:18] for sent in target.sent]
    assert len(set(markers[:4])) == 1
    assert len(set(markers[4:9])) == 1
    assert markers[0] != markers[4]


def test_instants_of_all_lanes_fall_on_one_moment(lanes: Any, tmp_path: Path) -> None:
    late = [call(7.0 * k, list(range(k + 2))) for k in range(3)]  # 0, 7, 14: at 0.6 the instant is 8.4
    workload = traces(tmp_path, a=LINEAR, b=late)  # at 0.6 of a, 4.8
    spread, _ = lanes(workload, 20.0, concurrency=2, start_min=0.6, start_max=0.6)
    assert of(spread, "warmup") == [("b", 1, 0.0), ("a", 2, 0.6)]  # 1.4 and 0.8 before their instants
    assert of(spread, "profiling")[:2] == [("a", 3, 0.0), ("a", 4, 2.0)]
    assert ("b", 2, 4.4) in of(spread, "profiling")  # 5.6 and 1.2 after them
    burst, _ = lanes(workload, 20.0, concurrency=2, start_min=0.6, start_max=0.6, burst=True)
    assert [at for _, _, at in of(burst, "warmup")] == [0.0, 0.0]
    assert ("b", 2, 0.0) in of(burst, "profiling")


def test_a_parent_waits_for_the_child_that_is_under_way(lanes: Any, tmp_path: Path) -> None:
    result, _ = lanes(traces(tmp_path, w=WITH_CHILD), 9.0, start_min=0.45, start_max=0.45)  # 4.5
    assert of(result, "warmup") == [("w", 0, 0.0), ("w::sa:a", 1, 3.0)]
    first = of(result, "profiling")
    assert first[0] == ("w::sa:a", 2, 0.0)  # the parent is gated and does not count for the first moment
    assert first[1] == ("w", 1, 2.0)
    children = {r.conversation_id: r for r in result.records}
    assert children["w::sa:a"].parent_correlation_id == children["w"].correlation_id


def test_what_the_warm_up_leaves_the_profile_goes_on_with(lanes: Any, tmp_path: Path) -> None:
    workload = traces(tmp_path, w=WITH_CHILD)
    for quota, warm_up, first in (
        (1, [("w", 0), ("w::sa:a", 1), ("w::sa:a", 2)], ("w", 1)),
        (2, [("w", 0), ("w::sa:a", 1), ("w::sa:a", 2), ("w", 1)], ("w", 2)),
        (3, [("w", 0), ("w::sa:a", 1), ("w::sa:a", 2), ("w", 1), ("w", 2)], ("w", 0)),
        (4, [("w", 0), ("w::sa:a", 1), ("w::sa:a", 2), ("w", 1), ("w", 2), ("w", 0)], ("w::sa:a", 0)),
    ):
        result, target = lanes(workload, 30.0, start_min=0.45, start_max=0.45, pressure_requests=quota)
        assert [(name, turn) for name, turn, _ in of(result, "warmup")] == warm_up
        assert of(result, "profiling")[0][:2] == first
        assert {s.call.body["max_completion_tokens"] for s in target.sent[: len(warm_up)]} == {1}
        by_session = {r.correlation_id for r in result.records if r.conversation_id == "w" and r.turn_index in (0, 1, 2)}
        assert len(of(result, "profiling")) >= 4
        assert by_session


def test_a_warm_up_by_time_drains_and_hands_over(lanes: Any, tmp_path: Path) -> None:
    result, _ = lanes(traces(tmp_path, one=LINEAR), 5.0, pressure_s=1.2)
    # without pauses: 0, 0.5 and 1.0; the third has its reply after the end
    assert of(result, "warmup") == [("one", 0, 0.0), ("one", 1, 0.5), ("one", 2, 1.0)]
    assert of(result, "profiling")[0] == ("one", 3, 0.0)


@pytest.mark.parametrize("where", ["system", "tree"])
def test_idle_time_is_cut_and_pauses_after_it_are_kept(lanes: Any, tmp_path: Path, where: str) -> None:
    gap = [call(0.0, [1]), call(50.0, [1, 2]), call(53.0, [1, 2, 3])]
    caps = {"system_idle_cap_s": 10.0} if where == "system" else {"tree_idle_cap_s": 10.0}
    result, _ = lanes(traces(tmp_path, gap=gap), 20.0, **caps)
    assert of(result, "profiling")[:3] == [("gap", 0, 0.0), ("gap", 1, 10.5), ("gap", 2, 13.5)]


def test_the_cap_of_the_system_waits_for_all_and_that_of_a_tree_does_not(lanes: Any, tmp_path: Path) -> None:
    gap = [call(0.0, [1]), call(30.0, [1, 2])]
    busy = [call(float(k), list(range(k + 1))) for k in range(40)]
    workload = traces(tmp_path, busy=busy, gap=gap)
    system, _ = lanes(workload, 25.0, concurrency=2, system_idle_cap_s=5.0)
    tree, _ = lanes(workload, 25.0, concurrency=2, tree_idle_cap_s=5.0)
    assert ("gap", 1) not in [(name, turn) for name, turn, _ in of(system, "profiling")]
    assert ("gap", 1, 5.5) in of(tree, "profiling")


def test_a_failed_root_of_the_warm_up_ends_the_run_and_a_child_does_not(lanes: Any, bench: Any, tmp_path: Path) -> None:
    workload = traces(tmp_path, w=WITH_CHILD)
    root, child = (bench.FakeTarget(0.5, fails=lambda number, _, fatal=fatal: number == fatal) for fatal in (1, 2))
    with pytest.raises(WarmUpError, match=r"1 root request failed.*conversation 'w': 500: forced"):
        lanes(workload, 9.0, root, start_min=0.45, start_max=0.45)
    assert len(root.sent) <= 2
    result, _ = lanes(workload, 9.0, child, start_min=0.45, start_max=0.45)
    assert of(result, "profiling")[0] == ("w::sa:a", 2, 0.0)


def test_an_overflow_ends_its_agent_and_releases_the_join(lanes: Any, bench: Any, tmp_path: Path) -> None:
    workload = traces(tmp_path, w=WITH_CHILD)
    plain, target = lanes(workload, 12.0)
    sizes = {(r.conversation_id, r.turn_index): len(s.label.split()) for r, s in zip(sorted(
        plain.records, key=lambda r: r.exchange.start_s), target.sent, strict=True)}  # fmt: skip
    least = sizes["w", 1]  # the parent's second prompt and the child's third, of three blocks each
    error = RequestError(400, "http_error", "This model's maximum context length is 9 tokens")
    short = bench.FakeTarget(0.5, fails=lambda _, label: len(label.split()) >= least, error=error)
    result, _ = lanes(workload, 30.0, short, overflow=("maximum context",))
    assert {(r.conversation_id, r.turn_index) for r in result.records} == {("w", 0), ("w::sa:a", 0), ("w::sa:a", 1)}
    assert not any(r.exchange.error for r in result.records)
    assert [name for name, turn, _ in of(result, "profiling") if turn == 0].count("w") > 1  # recycled


def test_too_many_failures_end_the_run_once_there_are_ten_requests(lanes: Any, bench: Any, tmp_path: Path) -> None:
    def flaky() -> Any:
        return bench.FakeTarget(0.5, fails=lambda number, _: number % 5 == 0)

    workload = traces(tmp_path, one=LINEAR)
    result, target = lanes(workload, 100.0, flaky(), failed_request_threshold=0.1)
    assert (result.cancelled, len(target.sent)) == (True, 10)
    assert result.cancel_reason == "2 of 10 requests failed: more than 10%"
    patient, _ = lanes(workload, 100.0, flaky(), failed_request_threshold=0.2)  # it has to be more than that
    assert not patient.cancelled
