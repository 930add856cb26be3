"""What a run says of times that are partly those of the machine, by hand."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from made_runs import record, run

import llmirage
from llmirage_client.commands.finished_runs import verify_client
from llmirage_client.measure.client_error import Error, client_error, read_stamps
from llmirage_client.measure.distortion import Distortion, distortion_of
from llmirage_client.measure.metrics import compute
from llmirage_client.report.files import summary_json
from llmirage_shared.settings import InputRefused
from llmirage_shared.statistics import ServedTimes


def served(
    streams: int = 10, ttft: tuple[float, float] = (0.033, 0.033), itl: tuple[float, float] = (0.005, 0.005)
) -> ServedTimes:
    """Streams of eleven tokens each. ttft, itl: as simulated and as sent, cluster seconds."""
    times = ServedTimes()
    for _ in range(streams):
        times.ended(*ttft, 10, itl[0] * 10, itl[1] * 10)
        times.tokens_late.add(0.0004, 11)
        times.front_end.add(0.002)
    return times


def of(
    times: ServedTimes, ttft_ms: float, itl_ms: float, requests: int = 10, speed: float = 10.0, server: float = 10.0
) -> Distortion | None:
    """failed: one more request of the run has no times."""
    ok = np.array([True] * requests + [False])
    values = {
        "time_to_first_token": np.array([ttft_ms] * requests + [math.nan]),
        "inter_token_latency": np.array([itl_ms] * requests + [math.nan]),
    }
    return distortion_of(times, [server], speed, ok, values)


def notes(distortion: Distortion | None) -> list[str]:
    assert distortion is not None
    return distortion.notes


def test_within_a_tenth_nothing_is_said() -> None:
    assert notes(of(served(ttft=(0.033, 0.034)), 35.0, 5.2)) == []


def test_a_ttft_that_the_client_saw_longer_is_told_with_both_figures() -> None:
    [note] = notes(of(served(ttft=(0.033, 0.034)), 42.0, 5.0))
    assert "At speed 10" in note
    figures = re.search(r"TTFT p50 42 ms instead of ([\d.]+) \(\+(\d+)%\)", note)
    assert figures is not None
    assert float(figures[1]) == pytest.approx(33, rel=0.01)
    assert float(figures[2]) == pytest.approx(27, abs=1)
    assert "ITL" not in note
    assert re.search(r"1 % left 4(\.0\d*)? ms late or more", note)
    assert "lower --speed" in note


@pytest.mark.parametrize(("measured", "sign"), [(4.0, "-20%"), (6.0, "+20%")])
def test_an_itl_that_is_shorter_is_distorted_as_much_as_one_that_is_longer(measured: float, sign: str) -> None:
    [note] = notes(of(served(), 33.0, measured))
    assert f"ITL p50 {measured:g} ms instead of" in note
    assert sign in note
    assert "TTFT" not in note


def test_the_tail_alone_is_told_too() -> None:
    times = served(98)
    for _ in range(2):
        times.ended(0.033, 0.066, 10, 0.05, 0.05)
    ttft_ms = np.array([33.0] * 98 + [66.0] * 2)
    found = distortion_of(times, [10.0], 10.0, np.ones(100, np.bool_), {"time_to_first_token": ttft_ms})
    [note] = notes(found)
    assert "p99 66 ms" in note
    assert "p50" not in note


def test_where_others_used_the_server_its_own_figures_stand() -> None:
    found = of(served(11, ttft=(0.033, 0.04)), 99.0, 9.0)
    assert found is not None
    assert found.ttft is not None
    assert found.ttft.measured is None
    assert found.ttft.seen["p50"] == pytest.approx(40, rel=0.01)
    [note] = notes(found)
    assert "TTFT p50" in note
    assert "ITL" not in note


def test_another_speed_than_the_servers_is_told_instead() -> None:
    [note] = notes(of(served(), 330.0, 50.0, speed=1.0))
    assert "runs at --speed 10" in note
    assert "told 1" in note


def test_nothing_to_tell() -> None:
    assert of(ServedTimes(), 33.0, 5.0) is None
    assert of(served(), 33.0, 5.0, server=math.inf) is None


def test_the_summary_has_it() -> None:
    result = run([record(ttft_s=0.05)])
    result.distortion = of(served(), 42.0, 5.0)
    content = json.loads(json.dumps(summary_json(result, compute(result), "")))["llmirage"]["distortion"]
    assert (content["speed"], content["server_speeds"], content["streams"], content["distorted"]) == (10, [10], 10, True)
    assert content["ttft"]["measured"]["p50"] == 42.0
    assert content["ttft"]["simulated"]["p50"] == pytest.approx(33, rel=0.01)
    assert content["front_end_ms"]["p50"] == pytest.approx(2, rel=0.01)
    assert content["late_ms"]["p99"] == pytest.approx(4, rel=0.01)


def test_errors_are_what_was_measured_less_what_was_sent() -> None:
    late = record(start_s=5.0, ttft_s=0.1, tpot_s=0.01, tokens=5)
    late.request_id = "a"
    stamps = {"a": [(95.0, 1), (103.0, 2), (111.0, 3), (119.0, 4), (127.0, 5)], "other": [(1.0, 1)]}
    found = client_error([late, record(start_s=6.0)], stamps)
    assert (found.requests, found.compared) == (2, 1)
    assert found.ttft == Error(1, pytest.approx(5.0), pytest.approx(5.0))
    assert found.itl == Error(1, pytest.approx(2.0), pytest.approx(2.0))
    assert found.gap == Error(4, pytest.approx(2.0), pytest.approx(2.0))
    fewer = client_error([late], {"a": [(95.0, 1), (127.0, 5)]})
    assert (fewer.gap, fewer.itl) == (None, found.itl)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "line 1: is no line"),
        ('{"request_id":"a"}', "line 1"),
        ('{"request_id":"a","sent":[[1]]}', "line 1"),
        (None, "No"),
    ],
)
def test_bad_stamps_are_refused_with_their_line(text: str | None, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "stamps"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputRefused, match=re.escape(problem)):
        read_stamps(str(path))


def test_a_run_against_a_server_that_stamps(tmp_path: Path) -> None:
    stamps = str(tmp_path / "stamps.jsonl")
    with llmirage.Server(port=0, ttft=20, itl=30, set={"sent_stamps": stamps}) as server:
        llmirage.run(url=server.base_url, isl=50, osl=8, requests=6, artifact_dir=tmp_path / "run")
    result = CliRunner().invoke(verify_client, [str(tmp_path / "run"), stamps, "--json"])
    assert result.exit_code == 0, result.output
    found = json.loads(result.output)
    assert (found["requests"], found["compared"], found["gap"]["count"]) == (6, 6, 42)
    assert 0 < found["ttft"]["median"] < 500
    [first, *_] = read_stamps(stamps).values()
    assert [tokens for _, tokens in first] == list(range(1, 9))
    assert first[0][0] >= 20
    table = CliRunner().invoke(verify_client, [str(tmp_path / "run"), stamps])
    assert "6 of 6 streamed requests have stamps" in table.output
    (tmp_path / "empty").write_text("")
    assert CliRunner().invoke(verify_client, [str(tmp_path / "run"), str(tmp_path / "empty")]).exit_code == 2
