"""Whatever kind of number a caller has: settings and workloads hold Python's own, of the declared type."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from llmirage_client.load.options import RunOptions
from llmirage_client.simulate.simulation import simulate
from llmirage_client.simulator.engine import ClusterConfig, ConfigError
from llmirage_client.workload.session import Session, TokenSpec, Turn, Workload
from llmirage_server.config import EventConfig, KvTransferConfig
from llmirage_shared.settings import make_plain


@dataclass(frozen=True, slots=True)
class Settings:
    count: int = 0
    rule: bool = False
    time_s: float = 0.0
    limit_s: float | None = None
    ids: Any = None


def plain(**settings: Any) -> Settings:
    made = Settings(**settings)
    make_plain(made)
    return made


@pytest.mark.parametrize(
    ("given", "expected"),
    [(np.int32(7), 7), (np.int64(2**62), 2**62), (np.uint8(3), 3), (np.bool_(True), True), (7, 7), (True, True), ("7", "7")],
)
def test_counts_are_pythons_own(given: Any, expected: Any) -> None:
    assert (type(plain(count=given).count), plain(count=given).count) == (type(expected), expected)


@pytest.mark.parametrize("given", [3, np.int64(3), np.float32(3.0), np.float64(3.0), 3.0])
def test_times_are_floats(given: Any) -> None:
    made = plain(time_s=given, limit_s=given)
    assert [(type(value), value) for value in (made.time_s, made.limit_s)] == [(float, 3.0)] * 2


@pytest.mark.parametrize(("given", "expected"), [(1e6, 1_000_000), (np.float64(8), 8), (1.5, 1.5), (True, True)])
def test_a_count_is_whole_if_it_can_be(given: Any, expected: Any) -> None:
    assert (type(plain(count=given).count), plain(count=given).count) == (type(expected), expected)


@pytest.mark.parametrize(("given", "expected"), [(1, True), (0, False), (np.bool_(True), True), (True, True), (2, 2)])
def test_a_rule_is_true_or_false(given: Any, expected: Any) -> None:
    assert (type(plain(rule=given).rule), plain(rule=given).rule) == (type(expected), expected)


@pytest.mark.parametrize("given", [math.inf, 1e300, 10**400])
def test_what_no_other_type_can_hold_stays(given: Any) -> None:
    made = plain(count=given, time_s=given, rule=given)
    assert made.count is made.time_s is made.rule is given


def test_what_is_no_number_stays() -> None:
    ids = np.arange(3)
    made = plain(ids=ids)
    assert made.ids is ids
    assert made.limit_s is None


def test_limits_are_checked_whatever_kind_the_number_is() -> None:
    with pytest.raises(ConfigError, match="instances must be at least 1"):
        ClusterConfig(instances=np.int64(0))  # type: ignore[arg-type]


def test_a_simulation_is_the_same_whatever_kind_its_numbers_are() -> None:
    def records(whole: Any, real: Any) -> list[str]:
        turns = tuple(Turn(tokens=TokenSpec(whole(50), whole(8)), delay_s=real(delay_s)) for delay_s in (0, 1))
        sessions = {name: Session(name, turns, mode="tokens", arrival_s=real(at)) for at, name in enumerate("abc")}
        config = ClusterConfig(
            model="meta-llama/Llama-3.1-8B",
            instances=whole(2),
            max_num_seqs=whole(4),
            pools=(),
            events=(EventConfig(at_s=real(1), action="crash", instance=whole(0), restart_after_s=real(1)),),
        )
        options = RunOptions(seed=whole(1), concurrency=whole(2), benchmark_duration_s=real(3), num_conversations=whole(6))
        workload = Workload("made", "made", sessions, tuple(sessions))
        done = simulate(config, workload, options, max_time_s=real(60))
        assert done.summary["requests"] > 4
        return [repr(record) for record in done.result.records]

    expected = records(int, float)
    assert records(int, int) == expected
    assert records(np.int64, np.float64) == expected
    assert records(np.int32, np.float32) == expected


def test_transfers_between_pools_take_whole_numbers_too() -> None:
    assert type(KvTransferConfig(bandwidth_gb_per_s=50, latency_us=np.int64(5)).latency_us) is float  # type: ignore[arg-type]
