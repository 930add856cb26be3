"""Sessions of ten turns without a script, at the speed of the default server: they end by themselves, and nothing fails.

Skipped where a program is not installed: `make test-clients`.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from programs import PLACE, LoggedServer, if_installed, logged, program, ran
from sdks import openai

pytestmark = if_installed
TURNS = 10
LONGEST_S = 60
ROUND = "echo round >> rounds.txt"
CITIES = ("Paris", "Rome", "Oslo", "Lima", "Cairo", "Tokyo", "Quito", "Delhi", "Bern", "Riga")
_WRONG = re.compile(
    r"^(?:.*(?:\w(?:Error|Exception)\b|\bERROR\b|Traceback \(|not conform|[Ee]rror in ).*|[Ee]rror.*)$", re.MULTILINE
)
_OFFLINE = {"LITELLM_LOCAL_MODEL_COST_MAP": "true", "HF_HUB_OFFLINE": "1", "NO_COLOR": "1"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LoggedServer]:
    with logged(tmp_path) as server:
        began_s = time.monotonic()
        yield server
        assert time.monotonic() - began_s < LONGEST_S
        assert server.problems() == []


def wrong_lines(output: str) -> list[str]:
    """Lines that tell of an error, as programs write them; replies may speak of errors."""
    return [found[0] for found in _WRONG.finditer(output)]


@contextmanager
def running(command: list[str], folder: Path, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A program that reads and writes lines; its standard error goes to a file."""
    with (folder / "stderr.txt").open("w") as errors, subprocess.Popen(
        command, cwd=folder, env={**os.environ, **_OFFLINE, **environment}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def wait_for(url: str, process: subprocess.Popen[str]) -> None:
    for _ in range(600):
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            assert process.poll() is None
            time.sleep(0.1)
    pytest.fail(f"{url} does not answer")


def posted(url: str, body: Any) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


# --- coding agents ------------------------------------------------------------------------------------------------------


def test_qwen_code(server: LoggedServer, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    flags = ["--auth-type", "openai", "--yolo", "--input-format", "stream-json", "--output-format", "stream-json"]
    environment = {
        "HOME": str(tmp_path), "OPENAI_API_KEY": "none", "OPENAI_BASE_URL": f"{server.url}/v1", "OPENAI_MODEL": "coder",
    }  # fmt: skip
    with running([program("qwen-code", "qwen"), *flags], folder, **environment) as qwen:
        assert qwen.stdin is not None
        assert qwen.stdout is not None
        for _ in range(TURNS):
            message = {"role": "user", "content": f"Use run_shell_command to run `{ROUND}`"}
            print(json.dumps({"type": "user", "message": message}), file=qwen.stdin, flush=True)
            result = next(event for event in map(json.loads, qwen.stdout) if event["type"] == "result")
            assert (result["is_error"], result["num_turns"]) == (False, 2), result
        qwen.stdin.close()
        assert qwen.wait(20) == 0
    assert (folder / "rounds.txt").read_text("utf-8").count("round") == TURNS
    assert wrong_lines((folder / "stderr.txt").read_text("utf-8")) == []


class ClaudeCode:
    """A session of Claude Code that takes its turns from standard input. events: what it has told."""

    def __init__(self, server: LoggedServer, folder: Path) -> None:
        self._folder = folder
        (folder / "work").mkdir()
        self._environment = {
            "ANTHROPIC_BASE_URL": server.url, "ANTHROPIC_API_KEY": "none", "CLAUDE_CONFIG_DIR": str(folder / "claude"),
            "HOME": str(folder), "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1",
        }  # fmt: skip
        self.events: list[Any] = []

    def say(self, turns: list[str]) -> list[Any]:
        """The result of each turn."""
        flags = ["-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose"]
        command = [program("claude-code", "claude"), *flags, "--allowedTools", "WebSearch"]
        results = []
        with running(command, self._folder / "work", **self._environment) as claude:
            assert claude.stdin is not None
            assert claude.stdout is not None
            for text in turns:
                message = {"role": "user", "content": text}
                print(json.dumps({"type": "user", "message": message}), file=claude.stdin, flush=True)
                for event in map(json.loads, claude.stdout):
                    self.events.append(event)
                    if event["type"] == "result":
                        results.append(event)
                        break
            claude.stdin.close()
            assert claude.wait(20) == 0
        assert wrong_lines((self._folder / "work" / "stderr.txt").read_text("utf-8")) == []
        return results


def test_claude_code_searches_the_web(server: LoggedServer, tmp_path: Path) -> None:
    session = ClaudeCode(server, tmp_path)
    results = session.say([f"Use WebSearch to search for the history of {city}" for city in CITIES])
    assert [(result["is_error"], result["num_turns"]) for result in results] == [(False, 2)] * TURNS
    found = [
        block["content"]
        for event in session.events
        if event["type"] == "user"
        for block in event["message"]["content"]
        if block["type"] == "tool_result"
    ]
    assert len(found) == TURNS
    for city, text in zip(CITIES, found, strict=True):
        assert f"history of {city}" in text
        assert "https://example.com/simulated/1/" in text


def test_claude_code_goes_on_when_the_context_is_full(tmp_path: Path) -> None:
    parts = [
        f"Remember part {part} of the log:\n"
        + "\n".join(f"{part}.{line} the fox jumps over line {line * 7919 % 1000} of the lazy dog" for line in range(700))
        for part in range(TURNS)
    ]
    with logged(tmp_path, "--max-model-len", "100000") as server:
        began_s = time.monotonic()
        session = ClaudeCode(server, tmp_path)
        results = session.say(parts)
        assert time.monotonic() - began_s < LONGEST_S
        refused = server.problems()
    assert [result["is_error"] for result in results] == [False] * TURNS
    assert [event for event in session.events if event.get("subtype") == "compact_boundary"] != []
    assert all('"POST /v1/messages" 400' in line for line in refused)  # beyond the context, which it learns from


def test_opencode(server: LoggedServer, tmp_path: Path) -> None:
    opencode, folder = program("opencode", "opencode"), tmp_path / "work"
    folder.mkdir()
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "llmirage",
        "options": {"baseURL": f"{server.url}/v1", "apiKey": "none"},
        "models": {"coder": {"name": "coder"}},
    }
    config = {
        "provider": {"llmirage": provider}, "model": "llmirage/coder", "small_model": "llmirage/coder", "autoupdate": False,
        "share": "disabled", "permission": {"bash": "allow", "edit": "allow"},
    }  # fmt: skip
    (folder / "opencode.json").write_text(json.dumps(config), "utf-8")
    environment = {f"XDG_{name}_HOME": str(tmp_path / name) for name in ("DATA", "CONFIG", "CACHE", "STATE")}
    environment |= {"HOME": str(tmp_path), "OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1"}
    url = f"http://127.0.0.1:{(port := free_port())}"
    with running([opencode, "serve", "--hostname", "127.0.0.1", "--port", str(port)], folder, **environment) as served:
        wait_for(f"{url}/config", served)
        for turn in range(TURNS):
            asked = f"Use bash to run `{ROUND}`"
            if turn in (0, TURNS - 1):  # the command takes seconds to start; what it asks for is the same
                more = ["--continue"] if turn else []
                said = ran([opencode, "run", "--attach", url, *more, "--format", "json", asked], folder, **environment)
                events = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
                session = events[0]["sessionID"]
                assert [event["type"] for event in events if event["type"] in ("tool_use", "error")] == ["tool_use"]
            else:
                answer = posted(f"{url}/session/{session}/message", {"parts": [{"type": "text", "text": asked}]})
                assert (answer["info"]["finish"], answer["info"].get("error")) == ("stop", None)
    assert (folder / "rounds.txt").read_text("utf-8").count("round") == TURNS


def test_aider(server: LoggedServer, tmp_path: Path) -> None:
    aider, folder = program("aider", "aider"), tmp_path / "work"
    folder.mkdir()
    (folder / "notes.txt").write_text("one\n", "utf-8")
    caches = tmp_path / ".aider" / "caches"
    caches.mkdir(parents=True)
    assert PLACE is not None
    [prices] = (Path(PLACE) / "aider").glob("lib/*/site-packages/litellm/model_prices_and_context_window_backup.json")
    shutil.copy(prices, caches / "model_prices_and_context_window.json")  # which it would look for in the network
    flags = [
        "--no-git", "--yes-always", "--no-auto-commits", "--no-show-model-warnings", "--no-check-update", "--no-fancy-input",
        "--no-pretty", "--no-suggest-shell-commands", "--model", "openai/gpt-4o",
    ]  # fmt: skip
    environment = {
        "OPENAI_API_BASE": f"{server.url}/v1", "OPENAI_API_KEY": "none", "AIDER_ANALYTICS": "false", "HOME": str(tmp_path),
    }  # fmt: skip
    with running([aider, *flags, "notes.txt"], folder, **environment) as process:
        said, _ = process.communicate("\n".join([f"What does line {turn} do?" for turn in range(TURNS)] + ["/exit"]), 60)
        assert process.returncode == 0
    assert said.count("Tokens: ") == TURNS, said[-2000:]
    assert wrong_lines(said) == []


# --- frameworks ---------------------------------------------------------------------------------------------------------

DSPY = """
import json, sys, dspy

def get_weather(city: str) -> str:
    "Get the weather in a city."
    return f"18 degrees in {city}"

dspy.configure(lm=dspy.LM("openai/gpt-4o", api_base=sys.argv[1], api_key="none", cache=False))
agent = dspy.ReAct("question -> answer", tools=[get_weather], max_iters=5)
for city in sys.argv[2:]:
    told = agent(question=f"What is the weather in {city}?")
    print("TURN", json.dumps([told.answer, *(told.trajectory[f"tool_name_{step}"] for step in (0, 1))]))
"""
SMOLAGENTS = """
import json, sys, smolagents

@smolagents.tool
def get_weather(city: str) -> str:
    '''Get the weather in a city.

    Args:
        city: the name of the city
    '''
    return f"18 degrees in {city}"

model = smolagents.OpenAIModel("gpt-4o", api_base=sys.argv[1], api_key="none")
agent = getattr(smolagents, sys.argv[2])(tools=[get_weather], model=model, max_steps=4)
for number, city in enumerate(sys.argv[3:]):
    told = agent.run(f"What is the weather in {city}?", reset=number == 0, return_full_result=True)
    print("TURN", json.dumps([told.output, told.state]))
"""


def turns_of(package: str, text: str, folder: Path, *arguments: str) -> list[Any]:
    """The turns that a Python program of a framework tells."""
    (folder / "agent.py").write_text(text, "utf-8")
    said = ran([program(package, "python"), "agent.py", *arguments], folder, **_OFFLINE)
    assert wrong_lines(said) == []
    return [json.loads(line.removeprefix("TURN ")) for line in said.splitlines() if line.startswith("TURN ")]


def test_dspy(server: LoggedServer, tmp_path: Path) -> None:
    turns = turns_of("dspy", DSPY, tmp_path, f"{server.url}/v1", *CITIES)
    assert [tools for _, *tools in turns] == [["get_weather", "finish"]] * TURNS
    assert all(f"18 degrees in {city}" in answer for (answer, *_), city in zip(turns, CITIES, strict=True))


@pytest.mark.parametrize("kind", ["ToolCallingAgent", "CodeAgent"])
def test_smolagents(kind: str, server: LoggedServer, tmp_path: Path) -> None:
    turns = turns_of("smolagents", SMOLAGENTS, tmp_path, f"{server.url}/v1", kind, *CITIES)
    assert [state for _, state in turns] == ["success"] * TURNS
    assert all(f"18 degrees in {city}" in answer for (answer, _), city in zip(turns, CITIES, strict=True))


# --- gateways -----------------------------------------------------------------------------------------------------------

KEY = "sk-0123456789abcdef0123456789abcdef"
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def settings_of(url: str) -> dict[str, dict[str, str]]:
    """LiteLLM's settings for each provider whose API the server has."""
    return {
        "openai": {"model": "openai/gpt-4o", "api_base": f"{url}/v1"},
        "azure": {"model": "azure/deployed", "api_base": url, "api_version": "2024-10-21", "base_model": "azure/gpt-4o"},
        "openrouter": {"model": "openrouter/openai/gpt-4o", "api_base": f"{url}/api/v1"},
        "anthropic": {"model": "anthropic/claude-sonnet-4-5", "api_base": url},
    }


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, LoggedServer, Path]]:
    """The URL of a LiteLLM proxy before the server, the server, and the proxy's log. It takes half a minute to start."""
    folder = tmp_path_factory.mktemp("proxy")
    with logged(folder) as server:
        models = [
            {
                "model_name": name,
                "litellm_params": {"api_key": "none", **settings},
                "model_info": {"base_model": "azure/gpt-4o"},
            }
            for name, settings in settings_of(server.url).items()
        ]
        (folder / "config.yaml").write_text(json.dumps({"model_list": models}), "utf-8")
        port = free_port()
        command = [program("litellm", "litellm"), "--config", "config.yaml", "--host", "127.0.0.1", "--port", str(port)]
        with (folder / "proxy.log").open("w") as log:
            process = subprocess.Popen(
                command, cwd=folder, env={**os.environ, **_OFFLINE, "LITELLM_MASTER_KEY": KEY}, text=True, stdout=log,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
            try:
                wait_for(f"http://127.0.0.1:{port}/health/liveliness", process)
                yield f"http://127.0.0.1:{port}/v1", server, folder / "proxy.log"
            finally:
                process.terminate()
                process.wait(30)


@pytest.mark.parametrize("provider", ["openai", "azure", "openrouter", "anthropic"])
def test_a_session_through_litellms_proxy(provider: str, proxied: tuple[str, LoggedServer, Path]) -> None:
    url, server, log = proxied
    client = openai.OpenAI(base_url=url, api_key=KEY, max_retries=0)
    messages: list[Any] = []
    began_s, before = time.monotonic(), log.read_text("utf-8")
    for number, city in enumerate(CITIES):
        messages.append({"role": "user", "content": f"What is the weather in {city}?"})
        if number % 2:
            with client.chat.completions.stream(model=provider, messages=messages, tools=[WEATHER]) as stream:
                choice: Any = stream.get_final_completion().choices[0]
        else:
            choice = client.chat.completions.create(model=provider, messages=messages, tools=[WEATHER]).choices[0]
        assert choice.finish_reason == "tool_calls"
        [call] = choice.message.tool_calls
        assert json.loads(call.function.arguments) == {"city": city}
        function = {"name": call.function.name, "arguments": call.function.arguments}
        messages.append({"role": "assistant", "tool_calls": [{"id": call.id, "type": "function", "function": function}]})
        messages.append({"role": "tool", "tool_call_id": call.id, "content": f"18 degrees in {city}"})
        answer = client.chat.completions.create(model=provider, messages=messages, tools=[WEATHER]).choices[0]
        assert answer.finish_reason == "stop"
        assert answer.message.content is not None
        assert f"18 degrees in {city}" in answer.message.content
        messages.append({"role": "assistant", "content": answer.message.content})
    assert time.monotonic() - began_s < LONGEST_S
    assert wrong_lines(log.read_text("utf-8")[len(before) :]) == []
    assert server.problems() == []


def test_errors_through_litellms_proxy(proxied: tuple[str, LoggedServer, Path]) -> None:
    client = openai.OpenAI(base_url=proxied[0], api_key=KEY, max_retries=0)
    for provider in ("openai", "azure", "openrouter"):
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model=provider, messages=[{"role": "user", "content": "x"}], temperature=9)
