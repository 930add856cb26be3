"""What a server was asked: typed entries of its journal, expectations of them, and the verdict on the clients."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from llmirage_shared.plural import plural
from llmirage_shared.settings import ConfigError, did_you_mean

_MOST_SHOWN = 10  # requests in a message
_LONG = 160  # characters of a text in a message
_LINE = 50  # of one in a line of a request
_COMPARED = 1_000  # of each of two texts
_IN_PART = ("user", "system", "reply", "error", "path", "rule")  # a text is looked for in these; others must be equal

Outcome = Literal["running", "complete", "client_left", "failed", "cut"]
Expected = str | int | float | bool | None | re.Pattern[str] | Callable[[Any], object]
"""What a field should be: a text or number, a compiled expression that is found in it, or a function that says so."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call of a reply. arguments: as they were sent, which need not be JSON."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolResult:
    """A tool's result that a request brought."""

    name: str
    content: str


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """One request and its answer, as docs/journal.md describes its fields. Times are seconds, but `ttft_ms`.

    at_s: Unix time of the arrival. arrived_s: the arrival on the server's clock, which virtual time moves.
    model: as the request names it. user, system: the texts of the last user message (or prompt) and of the system prompt.
    results: of tools, of this turn. reply, tool_calls: of the first choice. rule: the script's rule, `file:line`.
    fault: the name of the fault that happened to it. raw: the body.
    """

    number: int
    at_s: float
    arrived_s: float
    method: str
    path: str
    model: str
    stream: bool
    system: str
    user: str
    results: tuple[ToolResult, ...]
    status: int | None
    error: str
    outcome: Outcome
    reply: str
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    ttft_ms: float | None
    duration_s: float | None
    elapsed_s: float | None
    rule: str
    fault: str
    headers: Mapping[str, str] = field(repr=False)
    raw: bytes = field(repr=False)

    @property
    def body(self) -> dict[str, Any]:
        """The JSON object that was sent; empty if it is none."""
        try:
            value = json.loads(self.raw)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages of a chat or of Anthropic's API; empty for others."""
        messages = self.body.get("messages")
        return messages if isinstance(messages, list) else []

    def __str__(self) -> str:
        answer = f"{self.status or self.outcome}"
        said = f" {_short(self.error or self.reply, _LINE)}" if self.error or self.reply else ""
        called = "".join([f" {call.name}({_short(call.arguments, _LINE)})" for call in self.tool_calls])
        fault = f" [{self.fault}]" if self.fault else ""
        head = f"{self.number}. {self.method} {self.path} {self.model} {_short(self.user, _LINE)}"
        return f"{head} -> {answer}{fault}{said}{called}"


def served_request(entry: Any) -> ServedRequest:
    """entry: of the server's journal."""
    same = {each.name: getattr(entry, each.name) for each in fields(ServedRequest) if hasattr(entry, each.name)}
    return ServedRequest(
        **same
        | {
            "results": tuple([ToolResult(name, content) for name, content in entry.results]),
            "tool_calls": tuple([ToolCall(name, written) for name, written in entry.calls]),
            "raw": entry.body or b"",
        }
    )


class ExpectationError(AssertionError):
    """The server was not asked what a test expects. The message shows what it was asked, and which fields differ."""

    __module__ = "llmirage"


def expect(requests: Sequence[ServedRequest], times: int | None, wanted: Mapping[str, Expected]) -> list[ServedRequest]:
    """Return the requests with these fields. Raises ExpectationError if their number is not `times`, ConfigError.

    times: None for at least one.
    """
    __tracebackhide__ = True  # pytest then shows the line of the test, not this one
    known = [each.name for each in fields(ServedRequest)] + ["body"]
    if unknown := [name for name in wanted if name not in known]:
        raise ConfigError([f"{name}: a request has no such field{did_you_mean(name, known)}" for name in unknown])
    differing = {request.number: _differing(request, wanted) for request in requests}
    found = [request for request in requests if not differing[request.number]]
    if len(found) != times if times is not None else not found:
        raise ExpectationError(_message(requests, differing, times, wanted))
    return found


def _differing(request: ServedRequest, wanted: Mapping[str, Expected]) -> list[str]:
    return [name for name, value in wanted.items() if not _fits(name, getattr(request, name), value)]


def _fits(name: str, actual: Any, wanted: Expected) -> bool:
    if isinstance(wanted, re.Pattern):
        return isinstance(actual, str) and wanted.search(actual) is not None
    if callable(wanted):
        return bool(wanted(actual))
    if name in _IN_PART and isinstance(wanted, str) and isinstance(actual, str):
        return wanted in actual if wanted else not actual
    return bool(actual == wanted)


def _message(
    requests: Sequence[ServedRequest],
    differing: Mapping[int, Sequence[str]],
    times: int | None,
    wanted: Mapping[str, Expected],
) -> str:
    what = ", ".join([f"{name}={_expected(value)}" for name, value in wanted.items()]) or "any"
    count = "at least 1 request" if times is None else plural(times, "request")
    if not requests:
        return f"expected {count} with {what}; the server got no request"
    found = sum([not names for names in differing.values()])
    lines = [f"expected {count} with {what}; found {found} among {len(requests)}"]

    def distance(request: ServedRequest) -> tuple[bool, int, float, int]:
        names = differing[request.number]
        alike = sum([_likeness(getattr(request, name), wanted[name]) for name in names])
        return "path" in names, len(names), -alike, -request.number

    others = sorted([request for request in requests if differing[request.number]], key=distance)
    if others and found < (times or 1):
        nearest = others.pop(0)
        lines.append(f"nearest: request {nearest}")
        for name in differing[nearest.number]:
            lines += [f"  {name}", f"    expected: {_wanted_text(name, wanted[name])}"]
            lines += [f"    got:      {_short(repr(getattr(nearest, name)))}"]
    for title, some in (
        ("found:", [request for request in requests if not differing[request.number]]),
        ("other requests, nearest first:", others),
    ):
        if not some:
            continue
        lines.append(title)
        for request in some[:_MOST_SHOWN]:
            names = ", ".join(differing[request.number])
            lines.append(f"  {request}{f' (differs in {names})' if names else ''}")
        if (more := len(some) - _MOST_SHOWN) > 0:
            lines.append(f"  ... and {more} more")
    return "\n".join(lines)


def _likeness(actual: Any, wanted: Expected) -> float:
    """From 0 to 1, of two texts; 0 for anything else."""
    if not isinstance(actual, str) or not isinstance(wanted, str):
        return 0.0
    return difflib.SequenceMatcher(None, actual[:_COMPARED], wanted[:_COMPARED], autojunk=False).ratio()


def _wanted_text(name: str, value: Expected) -> str:
    """Return the value as text, and how it is compared where it need not be equal."""
    if isinstance(value, re.Pattern):
        return f"a match of {_expected(value)}"
    if callable(value):
        return f"{_expected(value)} to be true of it"
    return f"{'a text with ' if name in _IN_PART and isinstance(value, str) and value else ''}{_expected(value)}"


def _expected(value: Expected) -> str:
    if isinstance(value, re.Pattern):
        return f"/{value.pattern}/"
    return getattr(value, "__name__", repr(value)) if callable(value) else _short(repr(value))


def _short(text: str, most: int = _LONG) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 1]}…"


@dataclass(frozen=True, slots=True)
class JudgedRule:
    """One rule of docs/verdict.md. seen: how many cases there were. findings: what broke it, and why."""

    rule: str
    verdict: Literal["pass", "fail", "not seen"]
    looks_at: str
    seen: int
    findings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClientVerdict:
    """How the clients met refusals, broken replies and their own connections: `assert verdict.passed, verdict`."""

    rules: tuple[JudgedRule, ...]

    @property
    def passed(self) -> bool:
        """Whether no rule was broken."""
        return all(rule.verdict != "fail" for rule in self.rules)

    def __str__(self) -> str:
        lines = []
        for rule in self.rules:
            lines.append(f"{rule.rule}: {rule.verdict} ({rule.seen} seen)")
            lines += [f"  {finding}" for finding in rule.findings]
        return "\n".join(lines)


def verdict_of(judged: Iterable[Any]) -> ClientVerdict:
    """judged: the verdicts of the server's rules."""
    return ClientVerdict(
        tuple(
            [
                JudgedRule(
                    one.rule,
                    one.verdict,
                    one.looks_at,
                    one.seen,
                    tuple([f"requests {', '.join(map(str, each.requests))}: {each.why}" for each in one.findings]),
                )
                for one in judged
            ]
        )
    )
