"""`llmirage run` at several loads: sweeps and searches, against an endpoint that bears so many requests at once."""

import csv
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from invoked import invoke, records_of, text_of
from json_endpoint import ChatEndpoint, completion
from workload_files import conversation, write

from llmirage_shared.command_line import join_lists

REPLY_S = 0.03


class Endpoint(ChatEndpoint):
    """Fails what comes while more than `bears` requests are under way."""

    def __init__(self, bears: int) -> None:
        super().__init__(self._reply)
        self.bears = bears
        self.under_way = 0
        self.lock = threading.Lock()

    @property
    def prompts(self) -> list[str]:
        return [str(body["messages"][-1]["content"]) for body in self.bodies]

    def _reply(self, body: Any) -> tuple[int, Any]:
        with self.lock:
            self.under_way += 1
            too_many = self.under_way > self.bears
        time.sleep(REPLY_S)
        with self.lock:
            self.under_way -= 1
        return (503, {"error": {"message": "too many"}}) if too_many else (200, completion("yes", 3, 2))


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with Endpoint(bears=5).started() as server:
        yield server


@pytest.fixture
def workload(tmp_path: Path) -> str:
    return write(tmp_path, *(conversation(f"p{i}", name=f"s{i}") for i in range(20)))


def ran(workload: object, endpoint: Endpoint, *words: object, status: int = 0) -> str:
    """Run a workload; return what was printed, in one line."""
    known = ("--url", endpoint.url, "--model", "m", "--random-seed", 1, "--set", "preflight=false")
    return text_of("run", workload, *known, *words, status=status)


def test_a_sweep_runs_every_point_with_conversations_of_its_own(endpoint: Endpoint, workload: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = ran(workload, endpoint, "--concurrency", "1,2,4", "--num-conversations", "3,5,8", "--artifact-dir", out)
    assert sorted(endpoint.prompts) == sorted(f"p{i}" for i in range(16))
    content = json.loads((out / "sweep.json").read_text())
    assert [(p["concurrency"], p["request_count"]["avg"]) for p in content["points"]] == [(1, 3), (2, 5), (4, 8)]
    rows = list(csv.DictReader((out / "sweep.csv").open()))
    assert [row["concurrency"] for row in rows] == ["1", "2", "4"]
    assert all(float(row["request_latency_p50"]) >= REPLY_S * 1e3 for row in rows)
    folders = [out / p["folder"] for p in content["points"]]
    assert [folder.name for folder in folders] == ["01_concurrency1", "02_concurrency2", "03_concurrency4"]
    ids = [line["metadata"]["x_correlation_id"] for f in folders for line in records_of(f)]
    assert len(set(ids)) == 16
    assert "some repeat" not in result


def test_the_file_is_shared_out_and_a_wrap_is_told(workload: str, tmp_path: Path) -> None:
    with Endpoint(bears=15).started() as endpoint:
        ran(workload, endpoint, "--concurrency", "1,2", "--artifact-dir", tmp_path / "a")
        assert (len(endpoint.prompts), len(set(endpoint.prompts))) == (20, 20)
        said = ran(workload, endpoint, "--request-rate", "100,200", "--number", 15, "--artifact-dir", tmp_path / "b")
    assert "has 20 conversations and the points ran 30, so some repeat" in said


@pytest.mark.parametrize("turns", ["1", "1:4"])
def test_without_a_file_each_load_has_the_number_of_requests(endpoint: Endpoint, tmp_path: Path, turns: str) -> None:
    lengths = ["--isl", 20, "--osl", 3, "--requests", 9, "--turns", turns]
    words = [*lengths, "--concurrency", "1,2,3", "--url", endpoint.url, "--no-streaming", "--artifact-dir", tmp_path / "a"]
    invoke("run", *words)
    found = [records_of(folder) for folder in sorted((tmp_path / "a").glob("0*"))]
    assert [len(lines) for lines in found] == [9, 9, 9]
    conversations = [{line["metadata"]["conversation_id"] for line in lines} for lines in found]
    assert not set.intersection(*conversations)


def test_evalscopes_words_make_the_same_sweep(endpoint: Endpoint, workload: str, tmp_path: Path) -> None:
    ran(workload, endpoint, "--parallel", 1, 2, "--number", 2, 4, "--artifact-dir", tmp_path / "out")
    assert len(endpoint.prompts) == 6


def test_a_second_sweep_leaves_nothing_of_the_first(endpoint: Endpoint, workload: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ran(workload, endpoint, "--concurrency", "1,2,3", "--number", 2, "--artifact-dir", out)
    (out / "mine").mkdir()
    ran(workload, endpoint, "--concurrency", "4,5", "--number", 2, "--artifact-dir", out, "--overwrite")
    names = ["01_concurrency4", "02_concurrency5", "mine", "sweep.csv", "sweep.json"]
    assert sorted(file.name for file in out.iterdir()) == names


def test_every_point_writes_a_table(
    endpoint: Endpoint, workload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def killed_at_the_third(result: Any) -> str:
        calls.append(result)
        if len(calls) == 3:
            raise SystemExit(9)
        return ""

    monkeypatch.setattr("llmirage_client.operations.execute_points.one_line", killed_at_the_third)
    ran(workload, endpoint, "--find-max", "error_rate<=0", "--number", 4, "--artifact-dir", tmp_path / "out", status=9)
    content = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert [point["concurrency"] for point in content["points"]] == [1, 2]
    assert content["search"]["interrupted"]


def test_ctrl_c_leaves_the_table(endpoint: Endpoint, workload: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("llmirage_client.operations.execute_points.time", SimpleNamespace(sleep=interrupted))
    arguments = ("--number", 2, "--sleep-interval", 60, "--artifact-dir", tmp_path / "out")
    result = ran(workload, endpoint, "--concurrency", "1,2", *arguments, status=130)
    assert "The points after concurrency 1 were not run." in result
    result = ran(workload, endpoint, "--find-max", "error_rate<=0", *arguments, "--overwrite", status=130)
    assert "The search was interrupted. So far concurrency 1 is the highest known to meet error_rate<=0." in result


def test_a_failed_request_anywhere_ends_a_sweep_with_1(endpoint: Endpoint, workload: str, tmp_path: Path) -> None:
    ran(workload, endpoint, "--concurrency", "2,16", "--number", 16, "--artifact-dir", tmp_path / "out", status=1)
    points = json.loads((tmp_path / "out" / "sweep.json").read_text())["points"]
    assert [point["exit_status"] for point in points] == [0, 1]


def test_a_sweep_can_end_at_the_first_saturated_load(workload: str, tmp_path: Path) -> None:
    arguments = ("--concurrency", "1,16,20", "--number", 16, "--vary", "--artifact-dir", tmp_path / "out")
    with Endpoint(bears=1).started() as endpoint:
        said = ran(workload, endpoint, *arguments, "--set", "stop_at_saturation=true", status=1)
    points = json.loads((tmp_path / "out" / "sweep.json").read_text())["points"]
    assert [point["concurrency"] for point in points] == [1, 16]
    assert "Saturated from concurrency 16 on: 16 times the concurrency gave hardly more output." in said
    assert "The points after concurrency 16 were not run." in said


def test_a_search_ends_within_its_precision_and_above_its_bound(endpoint: Endpoint, workload: str, tmp_path: Path) -> None:
    bounds = ("--set", "find_max_precision=0.5", "--set", "find_max_lower_bound=3")
    arguments = ("--number", 32, "--vary", *bounds, "--artifact-dir", tmp_path / "out")
    ran(workload, endpoint, "--find-max", "latency_p50<60s", *arguments)
    content = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert [point["concurrency"] for point in content["points"]] == [3, 6, 4]


def test_a_search_finds_how_many_the_endpoint_bears(endpoint: Endpoint, workload: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = ran(workload, endpoint, "--find-max", "latency_p50<60s", "--number", 32, "--vary", "--artifact-dir", out)
    assert "The highest concurrency that meets latency_p50<60s is 5; 6 misses it." in result
    content = json.loads((out / "sweep.json").read_text())
    assert [point["concurrency"] for point in content["points"]] == [1, 2, 4, 8, 6, 5]
    assert [point["meets_slo"] for point in content["points"]] == [True, True, True, False, False, True]
    assert (content["search"]["highest_met"], content["search"]["lowest_missed"]) == (5, 6)
    assert "requests failed" in result
    assert "cut off" not in result


def test_a_search_says_when_nothing_or_everything_meets_it(endpoint: Endpoint, workload: str, tmp_path: Path) -> None:
    arguments = ("--number", 4, "--artifact-dir", tmp_path / "out", "--set", "find_max_upper_bound=4")
    result = ran(workload, endpoint, "--find-max", "latency_p50<1ms", "--concurrency", 4, *arguments, status=1)
    assert "No load meets latency_p50<1ms: even concurrency 1, the lowest tried, misses it." in result
    result = ran(workload, endpoint, "--find-max", "error_rate<=0", *arguments, "--overwrite")
    assert "Every load up to the bound meets error_rate<=0: concurrency 4 does" in result


def test_what_was_not_measured_does_not_meet_it(endpoint: Endpoint, workload: str, tmp_path: Path) -> None:
    arguments = ("--number", 2, "--artifact-dir", tmp_path / "out")
    result = ran(workload, endpoint, "--find-max", "ttft_p99<1s", "--no-streaming", *arguments, status=1)
    assert "ttft_p99<1s: not measured" in result


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--concurrency", "1,2", "--request-rate", "1,2"], "a sweep varies only one of them"),
        (["--concurrency", "1,2", "--number", "1,2,3"], "--concurrency has 2 numbers and --num-conversations 3"),
        (["--number", "1,2"], "only beside as many"),
        (["--concurrency", "1,,2"], "two commas"),
        (["--request-rate", "1,x"], "must be a number, not 'x'"),
        (["--find-max", "ttft<5"], "choose a statistic"),
        (["--find-max", "ttft_p9<5,nothing_p99<3"], "there is no metric 'nothing_p99'"),
        (["--find-max", "ttft_p99<5", "--concurrency", "1,2"], "chooses the loads itself"),
        (["--find-max", "ttft_p99<5", "--concurrency", "4000"], "not within its bounds"),
        (["--find-max", "ttft_p99<5", "--fixed-schedule"], "a fixed schedule determines the rate"),
        (["--find-max", "ttft_p99<5", "--set", "request_rate_series=0:1"], "not request_rate_series"),
        (
            ["--find-max", "ttft_p99<5", "--set", "find_max_variable=parallel", "--request-rate", "4"],
            "parallel excludes --request-rate",
        ),
        (["--sla-params", "[{}, {}]"], "one object of objectives"),
        (["--sla-params", "[{oops"], "not JSON"),
        (["--user-centric-rate", "2"], "--user-centric-rate needs --num-users"),
        (["--request-rate", "2", "--user-centric-rate", "2", "--num-users", "2"], "each determines when requests start"),
        (["--set", "request_rate_series=0:1,5:2", "--request-rate", "2"], "each determines when requests start"),
        (["--set", "request_rate_series=5:2"], "a series begins at 0 s"),
        (["--arrival-pattern", "constant"], "needs --request-rate or request_rate_series"),
        (["--request-rate", "2", "--arrival-pattern", "poisson", "--arrival-smoothness", "2"], "shape of gamma gaps"),
        (["--concurrency-ramp-duration", "2"], "needs --concurrency"),
        (["--request-rate-ramp-duration", "2"], "needs --request-rate"),
        (["--fixed-schedule-speedup", "2"], "needs a fixed schedule"),
        (["--fixed-schedule-auto-offset"], "needs a fixed schedule"),
        (["--conversation-turn-delay-stddev", "2"], "needs --conversation-turn-delay-mean"),
        (["--request-cancellation-delay", "2"], "needs --request-cancellation-rate"),
        (["--request-cancellation-rate", "200"], "must be at least 0 and at most 100, not 200"),
        (["--benchmark-grace-period", "2"], "needs --benchmark-duration"),
        (["--duration", "5", "--benchmark-duration", "5"], "is never reached"),
        (["--warmup-concurrency", "5"], "there is no warm-up"),
        (["--warmup-request-count", "5", "--warmup-grace-period", "5"], "needs --warmup-duration"),
        (["--warmup-request-count", "5", "--warmup-request-rate-ramp-duration", "5"], "needs --warmup-request-rate"),
        (["--num-warmup-sessions", "0.5"], "a share of --num-conversations"),
        (["--num-warmup-sessions", "1.5"], "neither a whole number nor a share"),
    ],
)
def test_nonsense_is_refused_in_one_message(arguments: list[str], said: str, endpoint: Endpoint, workload: str) -> None:
    result = ran(workload, endpoint, *arguments, status=2)
    assert said in result
    assert result.count("Error:") == 1
    assert not endpoint.prompts


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--fixed-schedule-start-offset", "9000"], "runs from 0 to 3,000 ms"),
        (["--fixed-schedule-start-offset", "20", "--fixed-schedule-end-offset", "10"], "comes before"),
        (["--fixed-schedule-start-offset", "20", "--fixed-schedule-auto-offset"], "both set the start of the schedule"),
        (["--fixed-schedule-end-offset", "1500", "--number", "3"], "has 2 conversations"),
        (["--dataset-sampling-strategy", "shuffle"], "a fixed schedule determines the order"),
        (["--fixed-schedule", "--concurrency", "1,2"], "would replay the same conversations"),
        (["--fixed-schedule", "--request-rate", "2"], "each determines when requests start"),
    ],
)
def test_bad_schedules_are_refused(arguments: list[str], said: str, endpoint: Endpoint, tmp_path: Path) -> None:
    file = write(tmp_path, *({"timestamp": 1000 * i, "text": f"p{i}"} for i in range(4)))
    result = ran(file, endpoint, "--format", "single_turn", *arguments, status=2)
    assert said in result
    assert not endpoint.prompts


@pytest.mark.parametrize(
    ("words", "joined"),
    [
        ("f --parallel 1 2 4 --number 10 20 30", "f --parallel 1,2,4 --number 10,20,30"),
        ("--parallel 1 f.jsonl", "--parallel 1 f.jsonl"),
        ("--parallel 1 2 f", "--parallel 1,2 f"),
        ("--parallel 1,2 4 -m 7 8", "--parallel 1,2,4 -m 7 8"),
        ("--rate 0.5 1.5 --url x", "--rate 0.5,1.5 --url x"),
    ],
)
def test_numbers_behind_a_flag_are_its_list(words: str, joined: str) -> None:
    assert join_lists(words.split(), ("--parallel", "--number", "--rate")) == joined.split()
