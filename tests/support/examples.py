"""The examples of every command's help, and a folder in which they can be typed."""

import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import click
import pytest
from click.testing import CliRunner, Result
from served import serving
from warm import llmirage

from llmirage_client.cli import COMMANDS, main
from llmirage_client.commands import demo
from llmirage_shared.command_line import SettingsCommand

SERVERS = ("serve", "record")  # they run until they are stopped
# What makes an example quick; the last of equal options counts.
_QUICK = {
    "demo": ("--speed", "100", "--sessions", "1"),
    "generate": ("--conversations", "2"),
    "run": ("--speed", "50"),
    "size": ("--requests", "20"),
    "sweep": ("--workers", "1", "--max-time", "5"),
}
ONE_OF_MANY = re.compile(
    r"(?<![\w.,:/-])1 (more )?(request|conversation|instance|GPU|run|point|worker|turn|rule|token|event|file|replica)s\b"
)
"""What no output has: a count of one before a plural."""
_CASSETTE = """interactions:
- request: {method: POST, uri: https://api.openai.com/v1/chat/completions, headers: {},
            body: '{"model": "m", "messages": [{"role": "user", "content": "Hi"}]}'}
  response: {status: {code: 200, message: OK}, headers: {content-type: [application/json]},
             body: {string: '{"object": "chat.completion", "choices": []}'}}
"""


def commands() -> Iterator[tuple[str, ...]]:
    """The words of every command, commands below commands too."""
    context = click.Context(main)
    for name in COMMANDS:
        yield (name,)
        found = main.get_command(context, name)
        if isinstance(found, click.Group):
            yield from ((name, below) for below in found.list_commands(context))


def command_of(words: tuple[str, ...]) -> SettingsCommand:
    found: click.Command | None = main
    for word in words:
        assert isinstance(found, click.Group)
        found = found.get_command(click.Context(found), word)
    assert isinstance(found, SettingsCommand)
    return found


def furnish(folder: Path) -> None:
    """Write the files that examples name. The current folder must be this one."""
    (folder / "requests.jsonl").write_text('{"text": "Hello"}\n{"text": "Explain prefix caching."}\n')
    exchange = {
        "request": {"model": "m", "messages": [{"role": "user", "content": "Hi"}]},
        "response": {"object": "chat.completion", "choices": []},
    }
    (folder / "pairs.jsonl").write_text(json.dumps(exchange) + "\n")
    (folder / "cassette.yaml").write_text(_CASSETTE)
    (folder / "more.yaml").write_text("rules:\n- when: {user: more}\n  reply: Here it is.\n")
    (folder / "fixtures").mkdir()
    fixture = {"match": {"userMessage": "hello"}, "response": {"content": "Hi there."}}
    (folder / "fixtures" / "greeting.json").write_text(json.dumps({"fixtures": [fixture]}))
    typed("llmirage script init replies.yaml")
    for name, load in (("low", "2"), ("high", "8")):
        typed(
            f"llmirage simulate --isl 500 --osl 50 --requests 60 --concurrency {load} --set records=true "
            f"--model Qwen/Qwen3-32B --artifact-dir artifacts/{name}"
        )
    records = (folder / "artifacts" / "low" / "profile_export.jsonl").read_text()
    ids = [json.loads(line)["metadata"]["x_request_id"] for line in records.splitlines()]
    stamps = [
        json.dumps({"request_id": each, "instance": place % 2, "sent": [[20.0, 1], [300.0, 50]]}) + "\n"
        for place, each in enumerate(ids)
    ]
    (folder / "stamps.jsonl").write_text("".join(stamps))
    (folder / "aiperf").mkdir()
    (folder / "aiperf" / "profile_export.jsonl").write_text(records)


def typed(line: str, *more: str, port: str = "8000") -> Result:
    """A command line as it stands in the help, quick, against the server on this port; more: words after it."""
    words = shlex.split(re.sub(r" > \S+$", "", line).replace("localhost:8000", f"localhost:{port}"))
    assert words[0] == "llmirage"
    quick = _QUICK.get(words[1], ())
    if words[1:3] == ["run", "bundled:coding-agent"]:
        quick = (*quick, "--num-conversations", "2")
    if (latest := Path("artifacts", "latest")).parent.exists():
        latest.unlink(missing_ok=True)
        latest.symlink_to("low")  # examples make runs of their own
    if words[1] == "run" and "--url" not in words:
        quick = (*quick, "--url", f"localhost:{port}")
    return CliRunner().invoke(main, [*words[1:], *quick, *more], prog_name="llmirage")


def first_line_of(line: str, *more: str) -> str:
    """What a server that is started so says first. It listens on a free port."""
    words = [*llmirage(), *shlex.split(line)[1:], "--port", "0", *more]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        return process.stdout.readline()
    finally:
        process.terminate()
        process.communicate(timeout=10)


@contextmanager
def served_beside(folder: Path) -> Iterator[str]:
    """The port of a server, in a folder that becomes the current one and has what the examples name."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        furnish(folder)
        with serving("--speed", "50") as url, pytest.MonkeyPatch.context() as patch:
            shown = demo.shown_command
            patch.setattr(demo, "shown_command", lambda *words, json: [*llmirage(), *shown(*words, json=json)[3:]])
            yield str(urlsplit(url).port)
    finally:
        os.chdir(before)
