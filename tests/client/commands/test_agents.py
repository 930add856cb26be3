"""More agents than the workload has: a run has so many distinct ones, or its first lines say what it did instead."""

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from invoked import invoke, json_of, refusal, summary_of
from json_endpoint import ChatEndpoint, completion
from workload_files import write

AGENTS = 60
CLUSTER = ["--model", "llama-3.1-8b", "--gpu", "h100_sxm", "--weights", "fp8", "--instances", "2"]
SYSTEM = "You are an agent that mends what is wrong in the code of other people, line by line, and says why."


@functools.cache
def simulated(*words: Any) -> dict[str, Any]:
    summary: dict[str, Any] = json_of("simulate", *words, *CLUSTER)
    return summary


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("agents") / "agents.jsonl"
    invoke("generate", "agent-chain", "--conversations", AGENTS, "--random-seed", 3, "-o", file)
    return file


@pytest.fixture(scope="module")
def distinct(generated: Path) -> dict[str, Any]:
    return simulated(generated, "--concurrency", AGENTS)


def test_all_ways_to_ask_for_many_agents_have_distinct_ones(generated: Path, distinct: dict[str, Any]) -> None:
    assert distinct["repeats"] is None
    file = "bundled:coding-agent"  # 50 conversations of the same preset
    for words in (
        [file, "--concurrency", AGENTS],
        [file, "--concurrency", AGENTS, "--num-conversations", AGENTS],
        [file, "--agents", AGENTS],
        [generated, "--agents", AGENTS],
    ):
        summary = simulated(*words)
        for name in ("ttft_ms", "tpot_ms", "latency_ms"):
            assert summary[name]["mean"] == pytest.approx(distinct[name]["mean"], rel=0.15), (words, name)
        assert summary["output_tok_per_s"] == pytest.approx(distinct["output_tok_per_s"], rel=0.15)
        if words[0] == file:
            told = summary["repeats"]
            assert (told["conversations"], told["distinct"], told["most"], told["varied"]) == (AGENTS, 50, 2, True)
            assert told["hit_share"] < 0.01


def test_token_for_token_repeats_are_told_with_their_share_of_the_cache_hits() -> None:
    words = ["bundled:coding-agent", "--concurrency", AGENTS, "--num-conversations", AGENTS]
    varied, verbatim = simulated(*words), simulated(*words, "--no-vary")
    told = verbatim["repeats"]
    assert (told["conversations"], told["distinct"], told["most"], told["varied"]) == (AGENTS, 50, 2, False)
    assert told["hit_share"] > 0.008 > 20 * varied["repeats"]["hit_share"]
    assert verbatim["cached_token_share"] > varied["cached_token_share"]


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (["--concurrency", 8, "--no-vary"], "Concurrency 8 was not reached: 5 conversations ran, each once."),
        (
            ["--num-conversations", 6, "--no-vary"],
            "6 conversations ran, but only 5 are distinct: each came up to 2 times",
        ),
        (["--agents", 6], "6 conversations ran, made of the 5 of the workload: each came up to 2 times"),
    ],
)
def test_the_first_ten_lines_say_it(words: list[Any], note: str, tmp_path: Path) -> None:
    result = invoke("simulate", conversations(tmp_path, 5), *words, *CLUSTER, "--artifact-dir", tmp_path / "out")
    assert note in " ".join(" ".join(result.stdout.splitlines()[:10]).split())
    exported = summary_of(tmp_path / "out")["llmirage"]
    assert exported["repeats"]["notes"][0].startswith(note)
    assert exported["notes"][0].startswith(note)


def test_the_name_of_a_preset_is_as_many_distinct_agents(distinct: dict[str, Any]) -> None:
    drawn = simulated("agent-chain", "--agents", AGENTS)
    assert drawn["repeats"] is None
    assert drawn["ttft_ms"]["mean"] == pytest.approx(distinct["ttft_ms"]["mean"], rel=0.15)
    short = ["--format-option", "output=20", "--format-option", "first_input=40"]
    told = simulated("batch", "--agents", 210, *short)["repeats"]
    assert (told["conversations"], told["distinct"], told["varied"]) == (210, 200, True)
    assert simulated("chat", "--num-conversations", 7)["repeats"] is None


def test_a_beginning_that_sub_agents_have_in_common_is_no_hit_of_a_repeat(tmp_path: Path) -> None:
    lines = []
    for n in range(4):
        task = " ".join(f"task{n}{i}" for i in range(30))
        child = {"role": "user", "content": f"{SYSTEM * 8}\n\n{' '.join(f'look{n}{i}' for i in range(30))}"}
        lines.append({"session_id": f"child{n}", "turns": [{"messages": [child], "max_tokens": 4}]})
        root = {"messages": [{"role": "user", "content": task}], "max_tokens": 4, "spawns": [f"child{n}"]}
        end = {"messages": [{"role": "user", "content": f"end{n}"}], "max_tokens": 4}
        lines.append({"session_id": f"root{n}", "turns": [root, end]})
    file = write(tmp_path, *lines)
    words = [file, "--concurrency", 1, "--num-conversations", 12]
    assert simulated(*words, "--vary")["repeats"]["hit_share"] < 0.02
    assert simulated(*words)["repeats"]["hit_share"] > 0.1


def test_files_stay_verbatim_unless_asked(tmp_path: Path) -> None:
    file = conversations(tmp_path, 2)
    words = [file, "--num-conversations", 4, "--random-seed", 1]
    assert simulated(*words)["repeats"]["varied"] is False
    assert simulated(*words, "--vary")["repeats"]["varied"] is True
    assert simulated(*words, "--vary", "--via", "api")["repeats"]["varied"] is True


def test_a_text_workload_varies_alike_by_engine_and_by_api(tmp_path: Path) -> None:
    words = [conversations(tmp_path, 5), "--agents", 8]
    engine, api = simulated(*words), simulated(*words, "--via", "api")
    assert engine["repeats"] == api["repeats"]
    assert engine["ttft_ms"] == pytest.approx(api["ttft_ms"])
    verbatim = simulated(words[0], "--concurrency", 8, "--num-conversations", 8, "--no-vary")
    assert verbatim["repeats"]["hit_share"] > 20 * engine["repeats"]["hit_share"]
    assert verbatim["requests"] == engine["requests"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--agents", 5, "--concurrency", 5], "--agents excludes --concurrency"),
        (["--agents", 5, "--request-rate", 1], "--agents excludes --request-rate"),
        (["--agents", 5, "--no-vary"], "--agents are distinct"),
    ],
)
def test_what_agents_exclude(words: list[Any], message: str) -> None:
    assert message in refusal("simulate", "bundled:chat", *words)


def test_points_of_a_study_say_it(tmp_path: Path) -> None:
    study = tmp_path / "study.yaml"
    study.write_text(
        f"name: agents\nworkload: {conversations(tmp_path, 5)}\nconcurrency: 6\nmodel: llama-3.1-8b\ngpu: h100_sxm\n"
        "grid: {vary: [true, false]}\n"
    )
    result = invoke("sweep", study, "--artifact-dir", tmp_path / "out", "--workers", 1)
    assert "6 conversations ran, made of the 5" in " ".join(result.stdout.split())


# --- an endpoint that knows prompts of an earlier run ----------------------------------------------------------------------


class Remembers(ChatEndpoint):
    def __init__(self) -> None:
        super().__init__(self._reply)
        self.prompts: list[str] = []

    def _reply(self, body: Any) -> tuple[int, Any]:
        prompt = json.dumps(body["messages"])
        cached = max((len(common(prompt, known)) for known in self.prompts), default=0)
        self.prompts.append(prompt)
        return 200, completion("done", len(prompt), 2, prompt_tokens_details={"cached_tokens": cached})


def common(one: str, other: str) -> str:
    end = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return one[:end]


@pytest.fixture
def endpoint() -> Iterator[Remembers]:
    with Remembers().started() as server:
        yield server


def conversations(folder: Path, count: int) -> Path:
    file = folder / "own.jsonl"
    lines = []
    for n in range(count):
        words = " ".join(f"word{n}{i}" for i in range(60))
        turns = [{"messages": [{"role": "system", "content": SYSTEM}, {"role": "user", "content": words}]}]
        lines.append(json.dumps({"session_id": f"s{n}", "turns": turns}))
    file.write_text("\n".join(lines))
    return file


def ran(endpoint: Remembers, file: Path, *words: Any, status: int = 0) -> tuple[str, list[str]]:
    out = file.parent / "out"
    result = invoke(
        "run", file, "--url", endpoint.url, "--no-streaming", "--artifact-dir", out, "--overwrite", *words, status=status
    )
    summary = out / "profile_export_aiperf.json"
    notes = json.loads(summary.read_text())["llmirage"]["notes"] if summary.exists() else []
    return " ".join(result.stdout.split()), notes


def test_a_run_says_that_the_endpoint_knew_its_prompts(endpoint: Remembers, tmp_path: Path) -> None:
    file = conversations(tmp_path, 6)
    knew = "in its cache before they were sent"
    first, notes = ran(endpoint, file, "--random-seed", 1)
    assert knew not in first  # the system prompt, which all have, is no sign of an earlier run
    assert not any(knew in note for note in notes)
    second, notes = ran(endpoint, file, "--random-seed", 2)
    assert knew in second[:700]
    assert knew in notes[0]


def test_a_run_over_http_gives_each_repeat_fresh_tokens(endpoint: Remembers, tmp_path: Path) -> None:
    file = conversations(tmp_path, 3)
    said, _ = ran(endpoint, file, "--agents", 9, "--random-seed", 1)
    assert "9 conversations ran, made of the 3 of the workload" in said
    assert len(set(endpoint.prompts)) == 9
    assert all(SYSTEM in prompt for prompt in endpoint.prompts)
    said, _ = ran(endpoint, file, "--num-conversations", 9, "--random-seed", 1)
    assert "9 conversations ran, but only 3 are distinct" in said
    assert len(set(endpoint.prompts)) == 9


def test_a_search_does_not_conclude_from_repeats(endpoint: Remembers, tmp_path: Path) -> None:
    file = conversations(tmp_path, 6)
    words = [
        "--find-max", "latency_p90<60s", "--num-conversations", 4, "--set", "find_max_upper_bound=4", "--random-seed", 1,
    ]  # fmt: skip
    doubt = "It holds only for prompts that the endpoint has seen before"
    assert doubt in ran(endpoint, file, *words, status=4)[0]
    endpoint.prompts.clear()
    assert doubt not in ran(endpoint, file, *words, "--vary")[0]
    assert doubt in ran(endpoint, file, *words, "--vary", status=4)[0]  # the same prompts a second time
