"""A chat request passes few files, each of them once: the walk that DESIGN.md tells, traced while the server does it.

A step of the walk is a call from one file into another, where the other one

- belongs to the HTTP face (`server/http/`, the families, `service/`, `shared/wire/`): each file of it that runs counts; or
- is the door of a room behind the face: the file by which that room is entered (`PromptEncoder` for tokens, a `ReplySource`
  for what is said, the driver for time, the cluster from the driver). What a room does behind its door is another walk.

A file has been left when none of its functions runs, or waits for one that runs. Calls during one visit of a file into
another, with nothing else entered in between, are one visit. No file is entered again after it was left: neither on the way
in (until the cluster has the request), nor on the way out (in each tick of the driver, until the bytes are handed to the
connection).

Not steps: constructors and what they call (they keep what they are given), the clock, turns of the loop, and the journal,
what counts bytes and what measures the server's own pace (they are told, and give nothing back).
"""

import asyncio
import json
import re
import sys
import types
from collections.abc import Coroutine, Generator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from starlette.types import Message

import llmirage_server
import llmirage_shared
from llmirage_server.app import LlmirageApp, create_app
from llmirage_server.config import ClusterConfig
from llmirage_server.drivers.live import PacedDriver
from llmirage_shared import virtual_time

pytestmark = pytest.mark.interpreted  # compiled functions are not profiled

MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
SERVER, SHARED = Path(llmirage_server.__file__).parent, Path(llmirage_shared.__file__).parent
DESIGN = Path(__file__).resolve().parents[3] / "DESIGN.md"
MOST_FILES = 12  # of a first reading
NOT_TRACED = ("server/commands/http_protocol.py", "server/cluster/instances/instance.py")  # before the app; behind a door
FACE = (*(f"server/{room}" for room in ("http", "service", "openai", "anthropic", "engines", "stored")), "shared/wire")
NO_STEPS = (
    "server/http/byte_budget.py",
    "server/http/sessions.py",  # names of headers
    "server/http/turns.py",
    "shared/virtual_time.py",
    "server/telemetry/journal.py",
    "server/telemetry/pace.py",
    "shared/statistics.py",
)
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}


class Visit:
    """A visit of a file. last: the visit that began last while this one went on."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.last: Visit | None = None


class Walk:
    """A profiler. files: in the order of their first visits. returns: calls into files that had been left.

    until: the name of the function with whose end the walk is over.
    """

    def __init__(self, until: str = "") -> None:
        self.files: list[str] = []
        self.returns: list[str] = []
        self.over = False
        self._until = until
        self._stack: list[Visit] = [Visit("")]  # for each running function the visit that it belongs to
        self._in_constructor = 0

    def __call__(self, frame: FrameType, what: str, _: Any) -> None:
        if self.over:
            return
        if what == "call":
            self._in_constructor += self._in_constructor > 0 or frame.f_code.co_name == "__init__"
            self._stack.append(self.visit(file_of(frame.f_code), frame.f_code.co_qualname))
        elif what == "return" and len(self._stack) > 1:
            self._in_constructor -= self._in_constructor > 0
            self._stack.pop()
            self.over = frame.f_code.co_qualname == self._until

    def visit(self, file: str | None, function: str) -> Visit:
        """The visit that a call into a file belongs to: the caller's own one, if the call is no step."""
        here = self._stack[-1]
        if file is None or file in NO_STEPS or self._in_constructor or not is_step(here.file, file):
            return here
        live = [visit for visit in self._stack if visit.file == file]
        if live:
            return live[-1]
        if here.last is None or here.last.file != file:
            if file in self.files:
                self.returns.append(f"{here.file} calls {function} of {file}")
            else:
                self.files.append(file)
            here.last = Visit(file)
        return here.last


def file_of(code: CodeType) -> str | None:
    """`server/openai/chat.py`; None for code of others."""
    path = Path(code.co_filename)
    for side, root in (("server", SERVER), ("shared", SHARED)):
        if path.is_relative_to(root):
            return f"{side}/{path.relative_to(root).as_posix()}"
    return None


def room(file: str) -> str:
    folder = file.rpartition("/")[0]
    return "face" if folder.startswith(FACE) else folder


def is_step(caller: str, file: str) -> bool:
    if not caller:
        return True
    return room(caller) in ("face", "server/drivers") and (room(file) == "face" or room(file) != room(caller))


@types.coroutine
def first_step_traced(coroutine: Coroutine[Any, Any, None], walk: Walk) -> Generator[Any, Any, None]:
    """Run a coroutine, and trace it until it waits for the first time."""
    sys.setprofile(walk)
    try:
        waits_for = coroutine.send(None)
    finally:
        sys.setprofile(None)
    while True:
        try:
            value = yield waits_for
        except BaseException as error:
            waits_for = coroutine.throw(error)
        else:
            try:
                waits_for = coroutine.send(value)
            except StopIteration:
                return


class TracedRequest:
    """A chat request whose way in and whose ways out, one for each tick with bytes for the connection, are traced."""

    may_be_stepped = True  # what the server wants to know of a `send` that it may call outside a task

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **fields: Any) -> None:
        self.inward = Walk(until="ChatHandler.create")
        self.outward: list[Walk] = []
        self.body = b""
        self._tick: Walk | None = None
        self._request = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8, **fields}
        self._parts: list[bytes] = []
        tick = PacedDriver._tick

        def traced_tick(driver: PacedDriver) -> None:
            self._tick = Walk()
            sys.setprofile(self._tick)
            try:
                tick(driver)
            finally:
                sys.setprofile(None)
                self._tick = None

        monkeypatch.setattr(PacedDriver, "_tick", traced_tick)
        virtual_time.run(self._run(create_app(ClusterConfig(instances=1))))

    async def _run(self, app: LlmirageApp) -> None:
        """Twice the same request: the first one imports and caches what later ones find."""
        headers = [(b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": headers, "query_string": b""}
        for walk in (Walk(), self.inward):
            self.body, self.outward = b"", []
            self._parts = [json.dumps(self._request).encode()]
            await first_step_traced(app(dict(scope), self._receive, self._send), walk)  # type: ignore[arg-type]

    async def _receive(self) -> Message:
        if not self._parts:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": self._parts.pop(), "more_body": False}

    async def _send(self, message: Message) -> None:
        self.body += message.get("body", b"")
        if self._tick is not None:
            self._tick.over = True
            self.outward.append(self._tick)


def told_walk(mark: str) -> list[str]:
    """The files of the walk in DESIGN.md whose lines begin so."""
    section = DESIGN.read_text().partition("## A chat request, file by file")[2].partition("\n## ")[0]
    return re.findall(rf"^{mark} \*\*`([\w/.]+)`\*\*", section, re.MULTILINE)


def test_a_streamed_chat_request_passes_the_files_in_the_order_that_the_design_tells(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    request = TracedRequest(monkeypatch, stream=True, stream_options={"include_usage": True})
    assert request.body.count(b"data: ") == 12  # role, 8 tokens, finish reason, usage, [DONE]
    assert request.inward.files == [file for file in told_walk(r"(?:\d+\.|   -)") if file not in NOT_TRACED]
    assert len(told_walk(r"\d+\.")) <= MOST_FILES
    assert len(request.outward) == 8
    for number, walk in enumerate(request.outward, 1):
        assert walk.files == [
            "server/drivers/live.py", "server/cluster/cluster.py", "server/service/generation.py", "shared/wire/output.py",
            *(["server/http/dialect.py"] if number == 8 else ()),  # counts the cached tokens of the usage
        ]  # fmt: skip


@pytest.mark.parametrize(
    "fields",
    [
        {"stream": True},
        {"stream": True, "stream_options": {"include_usage": True}, "n": 3},
        {"stream": True, "tools": [TOOL], "tool_choice": "none"},
        {"stream": False},
        {"stream": False, "tools": [TOOL], "tool_choice": "required", "max_tokens": 100},
        {
            "messages": [
                {"role": "system", "content": "Be brief"},
                {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            ]
        },
    ],
    ids=str,
)
def test_no_file_is_entered_again_after_it_was_left(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    request = TracedRequest(monkeypatch, **fields)
    assert request.body
    assert len(request.inward.files) > 10
    assert not request.inward.returns
    assert not [call for walk in request.outward for call in walk.returns]


def test_a_file_that_is_entered_again_is_found() -> None:
    """The profiler itself: calls in a row are one visit, a call after one into another file is a return."""
    walk = Walk()
    walk._stack.append(walk.visit("server/openai/chat.py", "create"))
    for file in ("models", "models", "service", "models"):
        walk.visit(f"server/service/{file}.py", "f")
    assert walk.files == ["server/openai/chat.py", "server/service/models.py", "server/service/service.py"]
    assert walk.returns == ["server/openai/chat.py calls f of server/service/models.py"]
