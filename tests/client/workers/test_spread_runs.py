"""Real runs over several processes, and over a Ray cluster where Ray is installed."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from json_endpoint import JsonEndpoint, JsonHandler, completion
from served import serving

from llmirage_client.commands.run import run
from llmirage_client.measure.run_folder import read_run

WORKLOAD = "bundled:dag-three-roots"
RAY = importlib.util.find_spec("ray") is not None
RAY_ONLY = pytest.mark.skipif(not RAY, reason="Ray is not installed")


class Server(JsonEndpoint):
    """Answers after pause_s. bodies: what came. agents: how many requests of each root conversation came."""

    def __init__(self) -> None:
        super().__init__(Handler)
        self.pause_s = 0.0
        self.bodies: list[str] = []


class Handler(JsonHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.body()
        self.server.bodies.append(json.dumps(body, sort_keys=True))
        time.sleep(self.server.pause_s)
        self.answer(200, completion(f"reply to {body['messages'][-1]['content']}", 3 * len(body["messages"]), 1))


@pytest.fixture
def server() -> Iterator[Server]:
    with Server().started() as server:
        yield server


def started(server: Server, folder: Path, *words: str) -> subprocess.Popen[str]:
    common = ["--url", server.url, "--model", "m", "--random-seed", "3", "--no-streaming", "--artifact-dir", str(folder)]
    return subprocess.Popen(
        [sys.executable, "-m", "llmirage", "run", WORKLOAD, *common, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )


def finished(server: Server, folder: Path, *words: str) -> tuple[int, str]:
    process = started(server, folder, *words)
    output, _ = process.communicate(timeout=120)
    return process.returncode, output


def same_run(server: Server, folder: Path, *words: str) -> dict[str, Any]:
    """Runs it in one process and spread; what came and what was counted are the same. Returns the spread run's summary."""
    load = ("--concurrency", "3")
    assert finished(server, folder / "one", *load)[0] == 0
    one, server.bodies = Counter(server.bodies), []
    status, output = finished(server, folder / "spread", *load, *words)
    assert status == 0, output
    assert Counter(server.bodies) == one
    assert sum(one.values()) > 5
    alone, spread = read_run(folder / "one"), read_run(folder / "spread")
    assert Counter(r.request_id for r in spread.records) == Counter(r.request_id for r in alone.records)
    assert {(r.request_id, str(r.exchange.usage), r.parent_correlation_id, r.joined) for r in spread.records} == {
        (r.request_id, str(r.exchange.usage), r.parent_correlation_id, r.joined) for r in alone.records
    }
    assert spread.branch_stats == alone.branch_stats
    assert sorted(p.name for p in (folder / "one").iterdir()) == sorted(p.name for p in (folder / "spread").iterdir())
    inputs = [json.loads((folder / name / "inputs.json").read_text())["data"] for name in ("one", "spread")]
    assert sorted(inputs[0], key=lambda s: str(s["session_id"])) == sorted(inputs[1], key=lambda s: str(s["session_id"]))
    summary: dict[str, Any] = json.loads((folder / "spread" / "profile_export_aiperf.json").read_text())
    lines = [json.loads(line) for line in (folder / "spread" / "profile_export.jsonl").read_text().splitlines()]
    assert {line["metadata"]["worker_id"] for line in lines} == {"llmirage-1", "llmirage-2"}
    assert spread.workers
    assert [w["number"] for w in summary["llmirage"]["workers"]] == [1, 2]
    assert sum(w["requests"] for w in summary["llmirage"]["workers"]) == len(lines)
    assert "2 workers sent this load" in output
    return summary


def test_processes_send_what_one_process_sends(server: Server, tmp_path: Path) -> None:
    same_run(server, tmp_path, "--executor", "process", "--workers", "2")


def test_processes_started_by_hand_send_their_shares(server: Server, tmp_path: Path) -> None:
    load = ("--concurrency", "3", "--set", "preflight=false")
    assert finished(server, tmp_path / "one", *load)[0] == 0
    one, server.bodies = Counter(server.bodies), []
    for index in range(2):
        status, output = finished(server, tmp_path / str(index), *load, "--set", f"share={index}/2")
        assert status == 0, output
    assert Counter(server.bodies) == one
    joined = b"".join((tmp_path / name / "profile_export.jsonl").read_bytes() for name in "01")
    (tmp_path / "all.jsonl").write_bytes(joined)
    alone, whole = (read_run(tmp_path / name).records for name in ("one", "all.jsonl"))
    assert Counter((r.request_id, r.parent_correlation_id, r.joined) for r in whole) == Counter(
        (r.request_id, r.parent_correlation_id, r.joined) for r in alone
    )


@RAY_ONLY
def test_a_ray_cluster_sends_what_one_process_sends(server: Server, tmp_path: Path) -> None:
    summary = same_run(server, tmp_path, "--executor", "ray", "--workers", "2", "--set", "ray_address=local")
    for worker in summary["llmirage"]["workers"]:
        assert abs(worker["clock_offset_s"]) < 0.5  # it is the same machine
        assert 0 < worker["clock_error_s"] < 0.5


@contextmanager
def two_nodes() -> Iterator[str]:
    """Give the address of a Ray cluster of two nodes with a CPU each, of which a worker takes it."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    try:
        cluster.add_node(num_cpus=1)
        yield cluster.address
    finally:
        cluster.shutdown()


@pytest.mark.skipif(sys.platform != "linux", reason="several processes of a server need Linux")
@pytest.mark.parametrize("executor", ["process", pytest.param("ray", marks=RAY_ONLY)])
def test_several_workers_load_a_server_of_several_processes_and_lose_nothing(executor: str, tmp_path: Path) -> None:
    """With Ray, from two nodes."""
    with ExitStack() as opened:
        where = ("--set", f"ray_address={opened.enter_context(two_nodes())}") if executor == "ray" else ()
        url = opened.enter_context(serving("--workers", "2", "--ttft", "20", "--itl", "2"))
        how = ("--executor", executor, "--workers", "2", "--concurrency", "16", "--set", "preflight=false", *where)
        command = [sys.executable, "-m", "llmirage", "run", WORKLOAD, "--url", url, "--random-seed", "3", *how]
        done = subprocess.run(
            [*command, "--artifact-dir", str(tmp_path)], capture_output=True, text=True, timeout=180, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        counted = httpx.get(f"{url.removesuffix('/v1')}/metrics").text
    result = read_run(tmp_path)
    ended = [line for line in counted.splitlines() if line.startswith("vllm:request_success_total")]
    assert sum([float(line.split()[-1]) for line in ended]) == len(result.records) > 5
    assert all(record.ok for record in result.records)
    assert [worker.lost for worker in result.workers] == [None, None]
    assert all(worker.requests and worker.clock_drift_s is not None for worker in result.workers)
    assert ("Their clocks agree within" in " ".join(done.stdout.split())) == (executor == "ray")  # else they have one clock


TWO = ("--workers", "2", "--concurrency", "2", "--num-conversations", "100000")
LONG = ("--executor", "process", *TWO)


def wait_for(server: Server, requests: int) -> None:
    deadline = time.monotonic() + 60
    while len(server.bodies) < requests and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(server.bodies) >= requests


def workers_of(pid: int) -> list[int]:
    """The processes that this one started to send load; actors of a Ray cluster may be others' too."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            words = (folder / "cmdline").read_bytes()
            if (parent == pid and b"spawn_main" in words) or words.startswith(b"ray::_Actor"):
                found.append(int(folder.name))
        except (OSError, ValueError, IndexError):
            continue
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds the worker in /proc")
@pytest.mark.parametrize(
    ("how", "why"),
    [
        (LONG, ("was lost: process", "was killed by SIGKILL")),
        pytest.param(
            ("--executor", "ray", "--set", "ray_address=local", *TWO),
            ("was lost: its process or its machine has died",),
            marks=RAY_ONLY,
        ),
    ],
    ids=["process", "ray"],
)
def test_a_worker_that_is_killed_cuts_the_run_and_loses_no_finished_request(
    server: Server, tmp_path: Path, how: tuple[str, ...], why: tuple[str, ...]
) -> None:
    server.pause_s = 0.01
    process = started(server, tmp_path, *how)
    wait_for(server, 60)
    os.kill(workers_of(process.pid)[-1], signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    result = read_run(tmp_path)
    assert result.cancelled
    assert result.cancel_reason is not None
    assert all(words in result.cancel_reason for words in why)
    assert f"The run was interrupted: {result.cancel_reason}" in output
    ok = [r for r in result.records if r.ok]
    # All that came before the last tenth of a second, of both workers; each has one request at a time.
    assert len(ok) >= len(server.bodies) - 2 - 25
    assert len([w for w in result.workers if w.lost]) == 1
    assert sum(w.requests for w in result.workers) == len(result.records)


def test_ctrl_c_ends_all_workers_and_reports_what_finished(server: Server, tmp_path: Path) -> None:
    server.pause_s = 0.01
    process = started(server, tmp_path, *LONG)
    wait_for(server, 40)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    result = read_run(tmp_path)
    assert (result.cancelled, result.cancel_reason) == (True, "Ctrl-C")
    assert [w.lost for w in result.workers] == [None, None]
    assert len([r for r in result.records if r.ok]) >= 30
    assert (tmp_path / "inputs.json").exists()


def refused(*words: str) -> tuple[int, str]:
    outcome = CliRunner().invoke(run, [WORKLOAD, "--url", "http://127.0.0.1:9", "--model", "m", *words])
    return outcome.exit_code, outcome.output


def test_what_makes_no_sense_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    status, output = refused("--workers", "2")
    assert (status, "needs --executor: process or ray" in output) == (2, True)
    status, output = refused("--executor", "process", "--set", "ray_address=x")
    assert (status, "ray_address needs --executor ray" in output) == (2, True)
    status, output = refused("--executor", "process", "--set", "share=2/2")
    assert (status, "must be from 0/N to N-1/N, such as 0/8, not '2/2'" in output) == (2, True)
    status, output = refused("--executor", "process", "--concurrency", "2,4", "--set", "share=0/2")
    assert status == 2
    for problem in ("needs --random-seed", "share excludes --executor", "share is a part of one load, not of several"):
        assert problem in output
    status, output = refused("--concurrency", "2", "--random-seed", "1", "--set", "share=2/3")
    assert (status, "share 2/3: a concurrency of 2 gives only 2 of them something to do" in output) == (2, True)
    monkeypatch.setitem(sys.modules, "ray", None)
    status, output = refused("--executor", "ray", "--artifact-dir", str(tmp_path), "--set", "preflight=false")
    assert (status, output) == (2, "--executor ray needs Ray, which is not installed: pip install 'llmirage[ray]'\n")
