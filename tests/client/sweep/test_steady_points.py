"""Which points of a study are measured in the steady state."""

from pathlib import Path

import pytest

from llmirage_client.sweep.file import Study, read_study
from llmirage_client.sweep.point import Task, measured_steadily, work


def study_of(tmp_path: Path, text: str) -> Study:
    path = tmp_path / "study.yaml"
    path.write_text(text)
    return read_study(str(path))


def test_sessions_at_a_rate_are_measured_in_the_steady_state(tmp_path: Path) -> None:
    """300 requests of ten turns with 30 s between them: alone they would be the start of 30 conversations, and their end."""
    load = "model: llama-3.1-8b\nweights: bf16\nisl: 500\nosl: 50\nturns: 10\nthink_time: 30\nrequests: 300\n"
    load += "slo: ttft_p99<90s\n"
    (light, heavy), [off] = (
        [work(Task(0, point.config, point.load, None, None))["figures"] for point in study.points if point.config]
        for study in (
            measured_steadily(study_of(tmp_path, load + "grid:\n  request_rate: [2, 20]\n")),
            measured_steadily(study_of(tmp_path, load + "request_rate: 2\nsteady_state: false\n")),
        )
    )
    assert (light["steady_state"], off["steady_state"]) == (True, False)
    assert light["requests"] == heavy["requests"] == 300
    assert light["delivered_per_s"] == pytest.approx(2.0, rel=light["shortfall_allowed"])
    assert light["slo_met"] is True
    assert light["cached_token_share"] > 0.7
    assert off["delivered_per_s"] < 1.5
    assert heavy["saturated"] is True
    assert heavy["slo_met"] is False  # though nobody waited for 90 s so far


def test_only_loads_without_a_start_or_an_end_of_their_own_are_measured_steadily(tmp_path: Path) -> None:
    load = "isl: 500\nosl: 50\nrequests: 300\n"
    for more, steadily in (
        ("request_rate: 2\n", True),
        ("concurrency: 8\n", True),
        ("concurrency: 1\n", None),
        ("concurrency: 8\nconcurrency_ramp_duration: 0\n", None),
        ("request_rate: 2\nwarmup_request_count: 5\n", None),
        ("request_rate: 2\nsteady_state: false\n", False),
        ("request_rate: 2\nmin_instances: 1\nscale_on_queue: 4\ninstances: 2\n", None),
    ):
        [point] = measured_steadily(study_of(tmp_path, load + more)).points
        assert point.load.get("steady_state") is steadily, more


def test_users_of_a_closed_loop_start_one_by_one_unless_the_study_says_otherwise(tmp_path: Path) -> None:
    text = """\
model: llama-3.1-8b
weights: bf16
instances: 1
isl: 2000
osl: 100
requests: 400
concurrency: 64
points:
  - {name: gradual}
  - {name: at once, concurrency_ramp_duration: 0}
"""
    gradual, at_once = (
        work(Task(point.number, point.config, point.load, None, None))["figures"]["ttft_p99_ms"]
        for point in study_of(tmp_path, text).points
        if point.config is not None
    )
    assert gradual < 0.5 * at_once
