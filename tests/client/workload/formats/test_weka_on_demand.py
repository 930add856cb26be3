"""Large folders of WEKA traces: each trace is read when it begins, and nothing else is different."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from llmirage_client.cli import main
from llmirage_client.workload import session
from llmirage_client.workload.formats import weka_trace
from llmirage_client.workload.registry import load

BLOCKS = 64


def agent(draw: random.Random, start_s: float, turns: int, first: int) -> Iterator[dict[str, Any]]:
    ids = list(range(first, first + 4))
    for _ in range(turns):
        ids = [*ids, *range(max(ids) + 100, max(ids) + 100 + draw.randint(1, 3))]
        yield {
            "t": start_s,
            "type": "n",
            "model": "m",
            "in": len(ids) * BLOCKS + 3,
            "out": 5,
            "hash_ids": ids,
            "api_time": 1,
        }
        start_s += 3


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twelve traces, each with a subagent that its parent waits for."""
    monkeypatch.setattr(weka_trace, "_LARGE_BYTES", 1)
    draw, place = random.Random(2), tmp_path / "traces"
    place.mkdir()
    for number in range(12):
        inner = list(agent(draw, 1.5, 2, 5000))
        child = {"t": 1.5, "type": "subagent", "agent_id": "a", "duration_ms": 4000, "requests": inner}
        own = list(agent(draw, 0.0, 5, 1))
        trace = {"id": f"t{number}", "block_size": BLOCKS, "hash_id_scope": "local", "requests": [own[0], child, *own[1:]]}
        (place / f"{number:02}.json").write_text(json.dumps(trace))
    return place


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that were read."""
    found, before = list[str](), weka_trace._WekaReader.read_file

    def read_file(reader: Any, file: Path, name: str | None) -> None:
        found.append(file.name)
        before(reader, file, name)

    monkeypatch.setattr(weka_trace._WekaReader, "read_file", read_file)
    return found


def simulated(folder: Path, *more: str) -> Any:
    words = ["simulate", str(folder), "--model", "llama-3.1-8b", "--concurrency", "3", "--json", *more]
    return CliRunner().invoke(main, words)


def test_sessions_are_those_of_the_whole_folder_and_are_read_once(folder: Path, read: list[str]) -> None:
    whole, some = load(str(folder)), load(str(folder), options={"on_demand": True})
    assert (whole.on_demand, some.on_demand, some.roots) == (False, True, whole.roots)
    del read[:]
    assert repr(some.sessions["t3::sa:a"]) == repr(whole.sessions["t3::sa:a"])
    assert repr(some.sessions["t3"]) == repr(whole.sessions["t3"])
    assert read == ["03.json"]
    assert list(some.sessions) == list(whole.sessions)
    with pytest.raises(KeyError):
        some.sessions["t3::other"]


@pytest.mark.parametrize("kept", [10_000, 8])
def test_a_simulation_is_the_same_and_reads_what_it_runs(
    folder: Path, read: list[str], monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    """Also where no more than a tree's turns stay in memory."""
    monkeypatch.setattr(session, "_MOST_TURNS", kept)
    found = [json.loads(simulated(folder, *more).output.splitlines()[-1])
             for more in ((), ("--set", "format_option=on_demand=false"))]  # fmt: skip
    notes = [one.pop("notes") for one in found]
    assert found[0] == found[1]
    assert found[0]["requests"] == 12 * 7
    assert any("12 traces, each read when it begins" in note for note in notes[0])
    del read[:]
    assert simulated(folder, "--num-conversations", "2").exit_code == 0
    assert set(read) == {"00.json", "01.json"}


def test_a_scenario_begins_with_the_traces_of_its_lanes(folder: Path, read: list[str]) -> None:
    (folder / "00.json").write_text(json.dumps({"id": "t0", "block_size": BLOCKS, "requests": []}))
    words = ("--scenario", "agentx", "--unsafe-override", "--benchmark-duration", "5")
    found = json.loads(simulated(folder, *words).output.splitlines()[-1])
    assert 3 <= len(set(read)) < 12
    whole = json.loads(simulated(folder, *words, "--set", "format_option=on_demand=false").output.splitlines()[-1])
    assert found.pop("notes") != whole.pop("notes")
    assert found == whole


def test_what_is_wrong_with_a_trace_is_told_when_it_begins(folder: Path) -> None:
    bad = folder / "05.json"
    bad.write_text(bad.read_text().replace('"out": 5', '"out": "many"', 1))
    assert simulated(folder, "--num-conversations", "4").exit_code == 0
    done = simulated(folder)
    assert done.exit_code == 2
    assert "05.json: line 1: requests.0.out: " in done.output
    assert "Traceback" not in done.output
    bad.write_text((folder / "04.json").read_text().replace('"t4"', '"t5"') + "\n" + (folder / "03.json").read_text())
    done = simulated(folder)
    assert done.exit_code == 2
    assert "on_demand=false" in done.output


def test_the_prefix_hits_that_the_recording_allows_are_told(folder: Path, tmp_path: Path) -> None:
    hits = blocks = 0
    for file in folder.iterdir():
        entries = json.loads(file.read_text())["requests"]
        seen: set[int] = set()
        for request in sorted([*entries, *entries[1]["requests"]], key=lambda entry: entry["t"]):
            if ids := request.get("hash_ids"):
                hits += next((place for place, block in enumerate(ids) if block not in seen), len(ids))
                blocks += len(ids)
                seen |= set(ids)
    assert simulated(folder, "--artifact-dir", str(tmp_path / "out")).exit_code == 0
    found = json.loads((tmp_path / "out/profile_export_aiperf.json").read_text())
    assert found["theoretical_prefix_cache_hit"] == {"unit": "%", "avg": 100 * hits / blocks, "count": blocks, "sum": hits}
    assert "context_overflow_count" not in found
