"""Coding agents against the server: ten rounds of a tool in a session, on a script and on rules, and no error in its log.

Skipped where they are not installed: `make test-clients`.
"""

import json
import time
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
    model, name = "gpt-5-codex", "llmirage"
    settings, provider = "", ""

    def __init__(self, server: LoggedServer, folder: Path) -> None:
        self._program = program("codex", "codex")
        self._folder, self._home, self.told = folder / "work", folder / "codex", ""
        self._folder.mkdir(exist_ok=True)
        self._home.mkdir()
        (self._home / "config.toml").write_text(
            f'model = "{self.model}"\nmodel_provider = "llmirage"\n{self.settings}[model_providers.llmirage]\n'
            f'name = "{self.name}"\nbase_url = "{server.url}/v1"\nwire_api = "responses"\n{self.provider}',
            "utf-8",
        )

    def say(self, text: str, first: bool) -> None:
        resume = [] if first else ["resume", "--last"]
        flags = ["--json", "--skip-git-repo-check", "-c", 'sandbox_mode="danger-full-access"']
        told = ran([self._program, "exec", *resume, *flags, text], self._folder, CODEX_HOME=str(self._home))
        events = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
        assert events[-1]["type"] == "turn.completed", told[-2000:]
        self.told += told

    def rounds(self) -> int:
        return (self._folder / "rounds.txt").read_text("utf-8").count("round")


class CodexOverWebSocket(Codex):
    provider = "supports_websockets = true\n"


class PatchingCodex(Codex):
    """With a model for which Codex declares apply_patch as a custom tool."""

    model, settings = "gpt-5.5", 'model_reasoning_effort = "low"\n'


class CompactingCodex(PatchingCodex):
    """Compacts remotely, as it does with a provider of this name, every few turns."""

    name, settings = "OpenAI", f"{PatchingCodex.settings}model_auto_compact_token_limit = 9300\n"

    def compactions(self) -> int:
        return sum(file.read_text("utf-8").count('"type":"compaction"') for file in self._home.rglob("rollout-*.jsonl"))


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
    server = serve("--set", "reply_tokens=30")
    session = agent(server, tmp_path)
    for number in range(ROUNDS):
        session.say(f"Use {agent.tool} to run `{ROUND}`", first=number == 0)
    assert session.rounds() == ROUNDS
    assert server.problems() == []


MAIN = "def f():\n\treturn 1  # größer\n\n\ndef g():\n\treturn 2\n"
PATCHES = (  # what is said, and the files after it: those that change
    ("Use exec_command to run `cat src/main.py`", {}),
    (
        "Use apply_patch to replace 'return 1' by 'return 3' in main.py",
        {"src/main.py": MAIN.replace("return 1", "return 3")},
    ),
    ("Use exec_command to run `nl -ba 'my notes.txt' | sed -n '1,80p'`", {}),
    ("Replace `eggs` by `bread` in 'my notes.txt' with apply_patch", {"my notes.txt": "buy milk\r\nbuy bread\r\n"}),
    ("Use apply_patch to create todo.md saying hello world", {"todo.md": "hello world\n"}),
    ("Now change hello to goodbye in todo.md", {"todo.md": "goodbye world\n"}),
    ("Use apply_patch to append `bye` to todo.md", {"todo.md": "goodbye world\nbye\n"}),
    (
        "Use apply_patch to rename g() to h() in src/main.py",
        {"src/main.py": MAIN.replace("return 1", "return 3").replace("g()", "h()")},
    ),
    ("Tell me what a monad is.", {}),
    ("Delete the file todo.md", {"todo.md": None}),
)


@pytest.mark.parametrize("agent", [PatchingCodex, CompactingCodex])
def test_ten_turns_of_codex_at_real_speed(agent: type[PatchingCodex], tmp_path: Path) -> None:
    files: dict[str, str | None] = {"src/main.py": MAIN, "my notes.txt": "buy milk\r\nbuy eggs\r\n"}
    (tmp_path / "work" / "src").mkdir(parents=True)
    for name, text in files.items():
        (tmp_path / "work" / name).write_bytes((text or "").encode())
    with logged(tmp_path) as server:
        session = agent(server, tmp_path)
        started_s = time.monotonic()
        for number, (said, changed) in enumerate(PATCHES):
            session.say(said, first=number == 0)
            files |= changed
            there = {
                str(file.relative_to(tmp_path / "work")): file.read_bytes().decode()
                for file in (tmp_path / "work").rglob("*.*")
            }
            assert there == {name: text for name, text in files.items() if text is not None}, said
        assert time.monotonic() - started_s < 60
    assert "ERROR" not in session.told
    assert '"type":"error"' not in session.told
    assert server.problems() == []
    if isinstance(session, CompactingCodex):
        assert session.compactions() >= 2


@pytest.mark.parametrize("most", ["32000", "64000"])
def test_claude_codes_limits_fit_the_default_model(
    most: str, serve: Callable[..., LoggedServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLAUDE_CODE_MAX_OUTPUT_TOKENS", most)
    server = serve("--set", "reply_tokens=30")
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
        "--no-git", "--yes-always", "--no-auto-commits", "--edit-format", "diff", "--no-show-model-warnings",
        "--no-check-update",
    ]  # fmt: skip
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
