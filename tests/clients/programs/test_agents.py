"""Coding agents against the server: ten rounds of a tool in a session, on a script and on rules, and no error in its log.

Skipped where they are not installed: `make test-clients`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from programs import LoggedServer, if_installed, logged, program, ran

pytestmark = if_installed
ROUND = "echo round >> rounds.txt"
ROUNDS = 10
SPEED = ("--ttft", "20", "--itl", "1")


def script(tool: str, arguments: dict[str, str]) -> str:
    """Ten calls of the tool, each after the result of the one before, then a text."""
    call = {"tool_calls": [{"name": tool, "arguments": arguments}]}
    rules = [
        {"when": {"tool": tool, "assistant_messages": 0}, "reply": call},
        {"when": {"tool": tool, "assistant_messages": {"to": ROUNDS - 1}, "tool_result": True}, "reply": call},
        {"when": {"tool": tool, "tool_result": True}, "reply": "All done."},
    ]
    return json.dumps({"rules": rules})


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., LoggedServer]]:
    open_servers = []

    def make(*flags: str) -> LoggedServer:
        context = logged(tmp_path, *SPEED, *flags)
        open_servers.append(context)
        return context.__enter__()

    yield make
    for context in open_servers:
        context.__exit__(None, None, None)


def scripted(serve: Callable[..., LoggedServer], folder: Path, tool: str, arguments: dict[str, str]) -> LoggedServer:
    (folder / "script.yaml").write_text(script(tool, arguments), "utf-8")
    return serve("--script", str(folder / "script.yaml"))


class Codex:
    tool, arguments = "exec_command", {"cmd": ROUND}
    provider = ""

    def __init__(self, server: LoggedServer, folder: Path) -> None:
        self._program = program("codex", "codex")
        self._folder, self._home = folder / "work", folder / "codex"
        self._folder.mkdir()
        self._home.mkdir()
        (self._home / "config.toml").write_text(
            'model = "gpt-5-codex"\nmodel_provider = "llmirage"\n[model_providers.llmirage]\nname = "llmirage"\n'
            f'base_url = "{server.url}/v1"\nwire_api = "responses"\n{self.provider}',
            "utf-8",
        )

    def say(self, text: str, first: bool) -> None:
        resume = [] if first else ["resume", "--last"]
        flags = ["--json", "--skip-git-repo-check", "-c", 'sandbox_mode="danger-full-access"']
        told = ran([self._program, "exec", *resume, *flags, text], self._folder, CODEX_HOME=str(self._home))
        events = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
        assert events[-1]["type"] == "turn.completed", told[-2000:]

    def rounds(self) -> int:
        return (self._folder / "rounds.txt").read_text("utf-8").count("round")


class CodexOverWebSocket(Codex):
    provider = "supports_websockets = true\n"


class ClaudeCode:
    tool, arguments = "Bash", {"command": ROUND, "description": "A round"}

    def __init__(self, server: LoggedServer, folder: Path) -> None:
        self._program = program("claude-code", "claude")
        self._folder = folder / "work"
        self._folder.mkdir()
        self._environment = {
            "ANTHROPIC_BASE_URL": server.url,
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CONFIG_DIR": str(folder / "claude"),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
        }

    def say(self, text: str, first: bool) -> None:
        more = [] if first else ["--continue"]
        flags = ["--output-format", "json", "--allowedTools", "Bash"]
        told = ran([self._program, "-p", text, *more, *flags], self._folder, **self._environment)
        assert json.loads(told.splitlines()[-1])["is_error"] is False, told[-2000:]

    def rounds(self) -> int:
        return (self._folder / "rounds.txt").read_text("utf-8").count("round")


@pytest.mark.parametrize("agent", [Codex, CodexOverWebSocket, ClaudeCode])
def test_ten_rounds_of_a_script(agent: Any, serve: Callable[..., LoggedServer], tmp_path: Path) -> None:
    server = scripted(serve, tmp_path, agent.tool, agent.arguments)
    session = agent(server, tmp_path)
    session.say("Do it in ten rounds.", first=True)
    assert session.rounds() == ROUNDS
    assert server.problems() == []


@pytest.mark.parametrize("agent", [Codex, CodexOverWebSocket, ClaudeCode])
def test_ten_turns_on_rules(agent: Any, serve: Callable[..., LoggedServer], tmp_path: Path) -> None:
    server = serve("--reply-tokens", "30")
    session = agent(server, tmp_path)
    for number in range(ROUNDS):
        session.say(f"Use {agent.tool} to run `{ROUND}`", first=number == 0)
    assert session.rounds() == ROUNDS
    assert server.problems() == []


@pytest.mark.parametrize("most", ["32000", "64000"])
def test_claude_codes_limits_fit_the_default_model(
    most: str, serve: Callable[..., LoggedServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAUDE_CODE_MAX_OUTPUT_TOKENS", most)
    server = serve("--reply-tokens", "30")
    ClaudeCode(server, tmp_path).say("Hello", first=True)
    assert server.problems() == []


def test_aider_edits_a_file(serve: Callable[..., LoggedServer], tmp_path: Path) -> None:
    aider = program("aider", "aider")
    edit = "notes.txt\n```\n<<<<<<< SEARCH\n=======\nround\n>>>>>>> REPLACE\n```\n"
    rules = [{"when": {"user": "add a round"}, "reply": edit}]
    (tmp_path / "script.yaml").write_text(json.dumps({"rules": rules}), "utf-8")
    server = serve("--script", str(tmp_path / "script.yaml"))
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "notes.txt").write_text("", "utf-8")
    flags = [
        "--no-git",
        "--yes-always",
        "--no-auto-commits",
        "--edit-format",
        "diff",
        "--no-show-model-warnings",
        "--no-check-update",
    ]
    for _ in range(2):
        ran(
            [aider, *flags, "--restore-chat-history", "--model", "openai/gpt-4o", "--message", "add a round", "notes.txt"],
            folder,
            OPENAI_API_BASE=f"{server.url}/v1",
            OPENAI_API_KEY="none",
            AIDER_ANALYTICS="false",
            HOME=str(tmp_path),
        )
    assert (folder / "notes.txt").read_text("utf-8").count("round") == 2
    assert server.problems() == []
