"""What an engine's host adds to steps: for all requests that run, and on a Grace CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from llmirage_server.perf.catalogue.engines import find_engine
from llmirage_server.perf.catalogue.lookup import find_gpu
from llmirage_server.perf.parallelism import Parallelism
from llmirage_server.perf.steps.overhead import EngineOverhead

_IDLE = replace(
    find_engine("trtllm"), host_step_ms=0, host_sequence_us=0, hidden_step_ms=0, hidden_sequence_us=0, dp_sync_ms=0
)


def test_the_host_handles_all_requests_of_a_pipeline_in_each_of_its_steps() -> None:
    engine = replace(_IDLE, hidden_request_us=100, hidden_pipeline_ms=5)
    alone, four = (EngineOverhead(engine, 0.0, Parallelism(pp=stages), 0) for stages in (1, 4))
    assert alone.with_host(0.0, 10, 0, 10) == pytest.approx(10 * 100e-6)
    assert alone.with_host(1.0, 10, 0, 10) == 1.0  # the GPU works meanwhile
    assert four.with_host(0.0, 10, 0, 10) == pytest.approx(5e-3 + 4 * 10 * 100e-6)
    # A stage has work for the time of three other steps, while the host handles the fourth.
    assert four.with_host(1.0, 10, 0, 10) == pytest.approx(1.0 + 9e-3 / 4)


def test_requests_are_handled_by_who_launches_the_layers_of_prompts() -> None:
    overhead = EngineOverhead(replace(_IDLE, hidden_request_us=100), 0.05, Parallelism(), 0)
    assert overhead.with_host(0.0, 10, 128, 138) == pytest.approx(0.051)
    assert overhead.host_s(0.0, 10, 128, 138) == pytest.approx(0.051)


@pytest.mark.parametrize("gpu", ["gb200", "gb300", "gh200"])
def test_hidden_times_are_longer_on_grace(gpu: str) -> None:
    engine = replace(find_engine("trtllm"), grace_host=2.0, eager_layer_us=900, hidden_request_us=9)
    grace = engine.on(find_gpu(gpu))
    assert (grace.hidden_step_ms, grace.hidden_sequence_us) == (2 * engine.hidden_step_ms, 2 * engine.hidden_sequence_us)
    assert (grace.eager_layer_us, grace.hidden_request_us) == (1800, 18)
    assert grace.host_step_ms == engine.host_step_ms
    assert engine.on(find_gpu("b200")) == engine
