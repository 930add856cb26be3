"""One agent's conversation over every API of `llmirage serve`: the same tokens, the same cache hits, the same replies."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from served import serving

from llmirage_client.commands.run import run
from llmirage_client.load.history import in_context_mode
from llmirage_client.load.options import RunOptions
from llmirage_client.load.runner import Runner
from llmirage_client.simulator.memory import MemoryTransport
from llmirage_client.targets.http import HttpTarget
from llmirage_client.workload.registry import load
from llmirage_server.app import create_app
from llmirage_shared import virtual_time

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
AGENT = [
    {
        "session_id": "agent",
        "turns": [
            {
                "messages": [
                    {"role": "system", "content": "You are an agent."},
                    {"role": "user", "content": "What is the weather in Paris?"},
                ],
                "tools": [TOOL],
                "max_tokens": 60,
                "extra": {"tool_choice": "required", "parallel_tool_calls": False},
            },
            {
                "messages": [{"role": "tool", "tool_call_id": "authored", "content": "Sunny, 21 degrees."}],
                "max_tokens": 40,
                "extra": {"tool_choice": "none"},
            },
            {
                "messages": [{"role": "user", "content": "What should I wear?"}],
                "max_tokens": 30,
                "extra": {"tool_choice": "none"},
                "forks": ["summary"],
            },
        ],
    },
    {
        "session_id": "summary",
        "turns": [
            {"messages": [{"role": "user", "content": "Sum it up."}], "max_tokens": 20, "extra": {"tool_choice": "none"}}
        ],
    },
]
EXACT = {"min_tokens": 9, "ignore_eos": True}  # as generated workloads have it
COUNTS = ("usage_prompt_tokens", "usage_completion_tokens", "usage_prompt_cache_read_tokens")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with serving("--speed", "50") as url:
        yield url


@pytest.fixture(scope="module")
def engine() -> Iterator[str]:
    """A server that reports all that its prefix cache has."""
    with serving("--speed", "50", "--dialect", "vllm") as url:
        yield url


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("agent") / "agent.jsonl"
    file.write_text("".join(json.dumps(session) + "\n" for session in AGENT))
    return file


def replay(file: Path, url: str, folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """The records of a run in which every request succeeded: the server wants results to answer the calls it made."""
    shared = ["--url", url, "--speed", "50", "--random-seed", "1", "--artifact-dir", str(folder)]
    shared += ["--set", "tool_results=matched"]
    result = CliRunner().invoke(run, [str(file), *shared, *arguments])
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in (folder / "profile_export.jsonl").read_text().splitlines()]


def counts(records: list[dict[str, Any]]) -> list[list[float]]:
    return [[record["metrics"][name]["value"] for name in COUNTS] for record in records]


APIS = [
    ("chat",),
    ("responses",),
    ("responses", "--set", "context_mode=server_state"),
    ("responses", "--set", "context_mode=server_conversation"),
    ("messages",),
]


@pytest.mark.parametrize("streaming", ["--streaming", "--no-streaming"])
def test_an_agent_costs_the_same_tokens_over_every_api(engine: str, agent: Path, tmp_path: Path, streaming: str) -> None:
    replay(agent, engine, tmp_path / "first")  # what each finds in the prefix cache is then the same
    found = {}
    for api, *more in APIS:
        folder = tmp_path / "-".join((api, *more))
        found[(api, *more)] = counts(replay(agent, engine, folder, "--endpoint-type", api, streaming, *more))
    chat = found.pop(("chat",))
    assert len(chat) == 4
    assert all(own == chat for own in found.values()), found
    assert [prompt > before for (prompt, *_), (before, *_) in zip(chat[1:], chat, strict=False)] == [True] * 3


def test_replies_of_exact_lengths_can_be_asked_of_every_api(server: str, tmp_path: Path) -> None:
    turn = {"messages": [{"role": "user", "content": "Go on."}], "max_tokens": 9, "extra": EXACT}
    file = tmp_path / "exact.jsonl"
    file.write_text(json.dumps({"session_id": "exact", "turns": [turn]}) + "\n")
    lengths = {
        api: [reply for _, reply, _ in counts(replay(file, server, tmp_path / api, "--endpoint-type", api))]
        for api in ("chat", "completions", "responses", "messages")
    }
    assert lengths == {"chat": [9], "completions": [9], "responses": [9], "messages": [9]}


def test_in_memory_the_apis_are_equally_fast_to_the_last_bit(agent: Path) -> None:
    def token_times(api: Any, mode: str | None = None) -> list[list[float]]:
        workload = load(str(agent), None)

        async def main() -> list[list[float]]:
            target = HttpTarget("http://llmirage", transport=MemoryTransport(create_app()))
            options = RunOptions(model="Qwen/Qwen3-30B-A3B-Instruct-2507", endpoint_type=api, seed=1, tool_results="matched")
            result = await Runner(in_context_mode(workload, mode) if mode else workload, options, target).run()
            assert all(record.ok for record in result.records)
            return [record.exchange.token_s for record in result.records]

        return virtual_time.run(main())

    chat = token_times("chat")
    assert all(len(times) > 1 for times in chat)
    # The event that names a tool is one of its own there; all words come at the same times.
    assert [times[-1] for times in token_times("responses")] == [times[-1] for times in chat]
    assert token_times("responses", "server_state") == token_times("responses")


def test_a_prompt_of_text_has_as_many_tokens_as_its_messages(engine: str, agent: Path, tmp_path: Path) -> None:
    folder = tmp_path / "completions"
    first, second, *_ = counts(replay(agent, engine, folder, "--endpoint-type", "completions"))
    chat, *_ = counts(replay(agent, engine, tmp_path / "chat", "--endpoint-type", "chat"))
    assert first[0] == chat[0]
    assert second[2] > first[0]  # the reply, repeated in the next prompt, is found in the cache


def test_results_that_the_server_refuses_are_explained(server: str, agent: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(run, [str(agent), "--url", server, "--speed", "50", "--artifact-dir", str(tmp_path / "out")])
    assert result.exit_code == 1
    assert "--set tool_results=matched (or fitted)" in " ".join(result.output.split())


def test_whole_bodies_go_to_any_path(server: str, agent: Path, tmp_path: Path) -> None:
    replay(agent, server, tmp_path / "chat", "--set", "tool_results=fitted")
    bodies = tmp_path / "chat" / "inputs.json"
    raw = ("--endpoint-type", "raw", "--endpoint-path", "/v1/chat/completions")
    assert sorted(counts(replay(bodies, server, tmp_path / "raw", *raw))) == sorted(
        counts(replay(bodies, server, tmp_path / "again"))
    )
