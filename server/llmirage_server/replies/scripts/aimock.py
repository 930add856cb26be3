"""aimock's fixtures (@copilotkit/aimock) as rules of a script.

A fixture says what a request must have (`match`) and what it gets (`response`). Those that differ only in their
sequenceIndex become one rule with a list of replies.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmirage_server.replies.scripts.reader import FaultReader, script_of
from llmirage_server.replies.scripts.rule import FINISH_REASONS, ScriptRule, literal, mapped
from llmirage_shared.settings import ConfigError

# What has no counterpart, because ids, names and times are the server's own: the reply is converted without it.
_IGNORED = frozenset(
    ("id", "created", "model", "systemFingerprint", "role", "provider", "nativeFinishReason", "webSearches",
     "reasoningSignature", "redactedThinking", "latency", "chunkSize", "truncateAfterChunks", "disconnectAfterMs",
     "streamingProfile", "recordedTimings", "replaySpeed", "chaos", "openRouterProcessing", "metadata")
)  # fmt: skip
_OF_FIXTURES = frozenset(("match", "response"))
_SAID = frozenset(("content", "toolCalls", "blocks", "reasoning", "finishReason", "usage", "error", "status", "retryAfter"))
_USAGE = {
    "prompt_tokens": "prompt_tokens", "input_tokens": "prompt_tokens", "promptTokenCount": "prompt_tokens",
    "completion_tokens": "completion_tokens", "output_tokens": "completion_tokens",
    "candidatesTokenCount": "completion_tokens",
}  # fmt: skip

_KINDS: Mapping[str, type[Any]] = {"toolCalls": list, "blocks": list, "usage": dict}
_KIND_NAMES: Mapping[type[Any], str] = {list: "a list of objects", dict: "an object"}


@dataclass(slots=True)
class ConvertedScript:
    """rules: as data, for a file. left_out: what could not be converted, each with its place."""

    rules: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Fixture:
    place: str
    match: Mapping[str, Any]
    response: Mapping[str, Any]
    ignored: Sequence[str]


class _LeftOutError(ValueError):
    """A fixture that cannot be a rule; the message says why."""


def script_of_fixtures(names: Sequence[str], read_fault: FaultReader) -> ConvertedScript:
    """Return the rules of JSON files and of folders of them. Raises ConfigError for files that hold no fixtures."""
    problems: list[str] = []
    fixtures: list[_Fixture] = []
    for path in _files(names, problems):
        try:
            fixtures += _fixtures(path)
        except (OSError, ValueError) as error:
            problems.append(f"{path}: {getattr(error, 'strerror', None) or error}")
    if problems:
        raise ConfigError(problems)
    return _converted(fixtures, read_fault)


def _files(names: Sequence[str], problems: list[str]) -> Iterator[Path]:
    for name in names:
        path = Path(name)
        if not path.exists():
            problems.append(f"{name}: No such file or directory")
        yield from (sorted(path.rglob("*.json")) if path.is_dir() else [path] if path.exists() else [])


def _fixtures(path: Path) -> Iterator[_Fixture]:
    """Read a file's data. Raises OSError and ValueError."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from None
    listed = document.get("fixtures") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise ValueError("has no list of fixtures")
    for index, fixture in enumerate(listed):
        place = f"{path}: fixtures[{index}]"
        if not isinstance(fixture, dict) or not all(isinstance(fixture.get(name), dict) for name in _OF_FIXTURES):
            raise ValueError(f"fixtures[{index}]: must have match and response")
        known = _SAID | _IGNORED
        more = [name for name in fixture if name not in _OF_FIXTURES]
        ignored = [*more, *(name for name in fixture["response"] if name not in _SAID and name in known)]
        for name, kind in _KINDS.items():
            if not isinstance(value := fixture["response"].get(name, kind()), kind) or not all(
                isinstance(item, dict) for item in value if kind is list
            ):
                raise ValueError(f"fixtures[{index}]: response.{name} must be {_KIND_NAMES[kind]}")
        kinds = [str(block.get("type")) for block in fixture["response"].get("blocks", ())]
        if kinds != sorted(kinds):  # "toolCall" before "text"
            ignored.append("the order of blocks (text comes before calls)")
        yield _Fixture(place, fixture["match"], fixture["response"], ignored)


def _converted(fixtures: Sequence[_Fixture], read_fault: FaultReader) -> ConvertedScript:
    converted = ConvertedScript()
    tools = {str(call["id"]): call.get("name") for each in fixtures for call in _calls(each.response) if "id" in call}
    kept: list[ScriptRule] = []
    for group in _sequences(fixtures):
        try:
            _check_sequence(group)
            replies = [_reply(fixture.response) for fixture in group]
            rule = {"when": _when(group[0].match, tools), "reply": replies[0] if len(replies) == 1 else replies}
            rule = {name: value for name, value in rule.items() if value != {}}
            [read] = script_of({"rules": [rule]}, read_fault).rules
        except (_LeftOutError, ConfigError) as error:
            converted.left_out.append(f"{group[0].place}: left out: {error}")
            continue
        if any(earlier.covers(read) for earlier in kept):
            converted.left_out.append(f"{group[0].place}: left out: an earlier fixture fits all that it fits")
            continue
        kept.append(read)
        converted.rules.append(rule)
        for fixture in group:
            if fixture.ignored:
                converted.left_out.append(f"{fixture.place}: ignored: {', '.join(fixture.ignored)}")
    return converted


def _check_sequence(group: Sequence[_Fixture]) -> None:
    """Raise _LeftOutError for a sequence whose list of replies would come in another order."""
    indexes = [fixture.match["sequenceIndex"] for fixture in group if "sequenceIndex" in fixture.match]
    if indexes != list(range(len(indexes))):
        raise _LeftOutError(f"the sequenceIndex of what has this match must count from 0 on, not {indexes}")


def _sequences(fixtures: Sequence[_Fixture]) -> Iterator[list[_Fixture]]:
    """Yield the fixtures, those of one sequence in the place of the first. One without an index may end a sequence.

    Of several with the same index the first counts.
    """
    groups: dict[str, list[_Fixture]] = {}
    for place, fixture in enumerate(fixtures):
        criteria = {name: value for name, value in fixture.match.items() if name != "sequenceIndex"}
        key = json.dumps(criteria, sort_keys=True)
        indexed = "sequenceIndex" in fixture.match
        if not indexed and not any("sequenceIndex" in other.match for other in groups.get(key, ())):
            key = f"{key} {place}"
        groups.setdefault(key, []).append(fixture)
    for group in groups.values():
        firsts = {_index(fixture): fixture for fixture in reversed(group)}
        yield [firsts[index] for index in sorted(firsts)]


def _index(fixture: _Fixture) -> float:
    index = fixture.match.get("sequenceIndex")
    return float(index) if isinstance(index, int) else float("inf")


# --- match ------------------------------------------------------------------------------------------------------------


def _when(match: Mapping[str, Any], tools: Mapping[str, Any]) -> dict[str, Any]:
    """Return the conditions. tools: names of called tools by the ids of calls."""
    when: dict[str, Any] = {}
    for name, value in match.items():
        if name == "sequenceIndex" or value == "":
            continue
        if name not in _CONDITIONS:
            raise _LeftOutError(f"match.{name} has no counterpart in a script")
        key, read = _CONDITIONS[name]
        when[key] = read(value)
    result: dict[str, Any] = {}
    if "toolCallId" in match:
        key = str(match["toolCallId"])
        if key not in tools:
            raise _LeftOutError(f"no fixture calls a tool with the id {key!r}")
        result["name"] = tools[key]
    if "toolResultContains" in match:
        result["content"] = match["toolResultContains"]
    if result:
        when["tool_result"] = result
    return when


def _text(value: Any) -> Any:
    if not isinstance(value, str):
        raise _LeftOutError(f"{value!r} is not a text")
    return value


def _system(value: Any) -> Any:
    return {"contains": value} if isinstance(value, list) and value else _text(value)


def _model(value: Any) -> Any:
    """Return a pattern of models: aimock's gpt-4o fits gpt-4o-2024-08-06, too."""
    return {"regex": f"^{re.escape(_text(value))}($|-\\d)"}


def _endpoint(value: Any) -> list[str]:
    if value != "chat":
        raise _LeftOutError(f"scripts have no replies for {value}")
    return ["chat", "responses", "messages"]


_CONDITIONS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "userMessage": ("user", _text),
    "systemMessage": ("system", _system),
    "model": ("model", _model),
    "toolName": ("tool", _text),
    "endpoint": ("endpoint", _endpoint),
    "context": ("header", lambda value: {"x-aimock-context": {"exact": _text(value)}}),
    "turnIndex": ("assistant_messages", lambda value: value),
    "hasToolResult": ("tool_result", lambda value: value),
    "toolCallId": ("tool_result", lambda value: value),
    "toolResultContains": ("tool_result", lambda value: value),
}


# --- response ---------------------------------------------------------------------------------------------------------


def _reply(response: Mapping[str, Any]) -> Any:
    unknown = [name for name in response if name not in _SAID and name not in _IGNORED]
    if unknown:
        raise _LeftOutError(f"response.{unknown[0]} has no counterpart in a script")
    if isinstance(response.get("error"), Mapping):
        return {"fault": _fault(response)}
    reply: dict[str, Any] = {}
    if response.get("reasoning"):
        reply["reasoning"] = literal(_text(response["reasoning"]))
    blocks = response.get("blocks") or ()
    content = response.get("content")
    if blocks:
        content = "".join([str(block.get("text", "")) for block in blocks if block.get("type") == "text"]) or None
    if isinstance(content, str):
        reply["text"] = literal(content)
    elif content is not None:
        reply["json"] = _literals(content)
    if calls := _calls(response):
        reply["tool_calls"] = [{"name": call.get("name"), "arguments": _arguments(call.get("arguments"))} for call in calls]
    if not reply:
        raise _LeftOutError("the response says nothing")
    if response.get("finishReason") in FINISH_REASONS:
        reply["finish_reason"] = response["finishReason"]
    usage = {_USAGE[name]: count for name, count in response.get("usage", {}).items() if name in _USAGE}
    if usage:
        reply["usage"] = usage
    return reply["text"] if list(reply) == ["text"] else reply


def _fault(response: Mapping[str, Any]) -> dict[str, Any]:
    error = response["error"]
    fault = {"kind": "status", "status": response.get("status", 500)}
    told = {"message": error.get("message"), "code": error.get("code"), "retry_after_s": response.get("retryAfter")}
    return fault | {name: value for name, value in told.items() if value is not None}


def _calls(response: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the tool calls, of `blocks` if there are any."""
    blocks = response.get("blocks")
    return [block for block in blocks if block.get("type") == "toolCall"] if blocks else response.get("toolCalls", [])


def _arguments(value: Any) -> Any:
    """As a mapping where they are JSON; other text goes out as it is."""
    if isinstance(value, str):
        try:
            read = json.loads(value)
        except (ValueError, RecursionError):
            return literal(value)
        return _literals(read) if isinstance(read, dict) else literal(value)
    return _literals(value)


def _literals(value: Any) -> Any:
    return mapped(value, str, lambda text, _: literal(text))
