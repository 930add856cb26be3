"""One way to ask each API whose replies can be scripted, and one way to hear what it says, whole or streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
from event_streams import json_events

CONVERSING = ("chat", "responses", "messages")
ENDPOINTS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "generate": "/generate",
}
MODEL = "Qwen/Qwen3-30B-A3B-Instruct-2507"
Calls = Sequence[tuple[str, str]]
Texts = Sequence[str]


@dataclass
class Heard:
    """What one choice says. ended: stop, calls, length or filter. The counts are not compared."""

    text: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    refusal: str = ""
    thoughts: str = ""
    ended: str = "stop"
    prompt_tokens: int = field(default=0, compare=False)
    cached_tokens: int = field(default=0, compare=False)
    completion_tokens: int = field(default=0, compare=False)

    def as_told_by(self, endpoint: str) -> Heard:
        """As far as an API has words for it: prompts get a refusal as text; Messages end with it; thoughts may be hidden."""
        told = self
        if endpoint not in CONVERSING:
            told = replace(told, thoughts="", text=self.text + self.refusal, refusal="")
        if endpoint == "responses":
            told = replace(told, thoughts="", ended="stop" if self.ended == "calls" else self.ended)
        if endpoint == "messages" and self.refusal:
            told = replace(told, text=self.refusal, refusal="", ended="filter")
        return told


# --- asking ---------------------------------------------------------------------------------------------------------------


def ask(
    api: Any,
    endpoint: str,
    *,
    users: Sequence[str] = ("Hello",),
    system: str = "",
    model: str = MODEL,
    results: Calls = (),
    tools: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    metadata: Any = None,
    stream: bool = False,
    most: int | None = None,
    n: int = 1,
) -> httpx.Response:
    """The response to the same request in the words of an API.

    results: (tool, content), of calls made after the last user message. tools: the schemas of arguments by name.
    """
    body = _ASKING[endpoint](users, system, results, tools or {}, most)
    if endpoint != "generate":
        body |= {"model": model}
    if endpoint in ("chat", "completions") and stream:
        body |= {"stream_options": {"include_usage": True}}
    optional = {"stream": stream, "metadata": metadata, "n": n if n > 1 else None}
    body |= {name: value for name, value in optional.items() if value is not None}
    answer: httpx.Response = api.post(ENDPOINTS[endpoint], body, headers=dict(headers or {}))
    return answer


def _chat(users: Texts, system: str, results: Calls, tools: Mapping[str, Any], most: int | None) -> dict[str, Any]:
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    messages += _turns(users)
    if results:
        calls = [
            {"id": key, "type": "function", "function": {"name": name, "arguments": "{}"}}
            for key, name, _ in _numbered(results)
        ]
        messages.append({"role": "assistant", "content": None, "tool_calls": calls})
        messages += [{"role": "tool", "tool_call_id": key, "content": content} for key, _, content in _numbered(results)]
    declared = [{"type": "function", "function": {"name": name, "parameters": tools[name]}} for name in tools]
    return _given(messages=messages, tools=declared, max_tokens=most)


def _responses(users: Texts, system: str, results: Calls, tools: Mapping[str, Any], most: int | None) -> dict[str, Any]:
    items = _turns(users)
    for key, name, _ in _numbered(results):
        items.append({"type": "function_call", "call_id": key, "name": name, "arguments": "{}"})
    for key, _, content in _numbered(results):
        items.append({"type": "function_call_output", "call_id": key, "output": content})
    declared = [{"type": "function", "name": name, "parameters": tools[name]} for name in tools]
    return _given(input=items, instructions=system, tools=declared, max_output_tokens=most)


def _messages(users: Texts, system: str, results: Calls, tools: Mapping[str, Any], most: int | None) -> dict[str, Any]:
    messages = _turns(users)
    if results:
        uses = [{"type": "tool_use", "id": key, "name": name, "input": {}} for key, name, _ in _numbered(results)]
        came = [{"type": "tool_result", "tool_use_id": key, "content": content} for key, _, content in _numbered(results)]
        messages += [{"role": "assistant", "content": uses}, {"role": "user", "content": came}]
    declared = [{"name": name, "input_schema": {"type": "object", **tools[name]}} for name in tools]
    return _given(messages=messages, system=system, tools=declared, max_tokens=most or 500)


def _completions(users: Texts, system: str, results: Calls, tools: Mapping[str, Any], most: int | None) -> dict[str, Any]:
    return {"prompt": users[-1], "max_tokens": most or 500}


def _generate(users: Texts, system: str, results: Calls, tools: Mapping[str, Any], most: int | None) -> dict[str, Any]:
    return {"text": users[-1], "sampling_params": {"max_new_tokens": most or 500}}


_ASKING = {"chat": _chat, "completions": _completions, "responses": _responses, "messages": _messages, "generate": _generate}


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value}


def _turns(users: Texts) -> list[dict[str, Any]]:
    """User messages, with a reply after each but the last."""
    turns = [({"role": "user", "content": user}, {"role": "assistant", "content": "I see."}) for user in users]
    return [message for turn in turns for message in turn][:-1]


def _numbered(results: Calls) -> Iterator[tuple[str, str, str]]:
    """(id of the call, tool, content) of each."""
    for place, (name, content) in enumerate(results):
        yield f"c{place}", name, content


# --- hearing --------------------------------------------------------------------------------------------------------------

_ENDED = {
    "stop": "stop", "end_turn": "stop", "completed": "stop", "tool_calls": "calls", "tool_use": "calls", "length": "length",
    "max_tokens": "length", "max_output_tokens": "length", "content_filter": "filter", "refusal": "filter",
}  # fmt: skip


def heard(endpoint: str, answer: httpx.Response, choice: int = 0) -> Heard:
    """What a response says, by the deltas of its events if it is streamed."""
    assert answer.status_code == 200, answer.text
    streamed = answer.headers["content-type"].startswith("text/event-stream")
    parts = json_events(answer.text) if streamed else [answer.json()]
    return _HEARING[endpoint](parts, streamed, choice)


def said(reply: httpx.Response) -> Any:
    """The first choice of a chat completion: its text, its calls, or the whole error."""
    assert reply.status_code == 200, reply.text
    message = reply.json()["choices"][0]["message"]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
    return calls or message["content"]


def _of_choices(parts: Sequence[dict[str, Any]], streamed: bool, choice: int) -> Heard:
    said, calls = Heard(), {}
    for part in parts:
        for each in part["choices"]:
            if each["index"] != choice:
                continue
            message = each.get("delta", each.get("message", each))
            said.text += message.get("content") or message.get("text") or ""
            said.refusal += message.get("refusal") or ""
            said.thoughts += message.get("reasoning_content") or ""
            for place, call in enumerate(message.get("tool_calls") or ()):
                known = calls.setdefault(call.get("index", place), ["", ""])
                known[0] += call["function"].get("name") or ""
                known[1] += call["function"].get("arguments") or ""
            said.ended = _ENDED[each["finish_reason"]] if each["finish_reason"] else said.ended
        if usage := part.get("usage"):
            said.prompt_tokens, said.completion_tokens = usage["prompt_tokens"], usage["completion_tokens"]
            said.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    said.calls = [(name, json.loads(arguments)) for name, arguments in calls.values()]
    return said


def _of_responses(parts: Sequence[dict[str, Any]], streamed: bool, choice: int) -> Heard:
    said = Heard()
    for part in parts:
        if part.get("type") == "response.output_text.delta":
            said.text += part["delta"]
        if part.get("type") == "response.refusal.delta":
            said.refusal += part["delta"]
        if part.get("type") == "response.function_call_arguments.done":
            said.calls.append((part["item"]["name"] if "item" in part else part["name"], json.loads(part["arguments"])))
    response = parts[-1]["response"] if streamed else parts[0]
    if not streamed:
        for item in response["output"]:
            if item["type"] == "function_call":
                said.calls.append((item["name"], json.loads(item["arguments"])))
            for content in item.get("content") or () if item["type"] == "message" else ():
                said.text += content.get("text", "")
                said.refusal += content.get("refusal", "")
    details = response["incomplete_details"]
    said.ended = _ENDED[details["reason"] if details else response["status"]]
    usage = response["usage"]
    said.prompt_tokens, said.completion_tokens = usage["input_tokens"], usage["output_tokens"]
    said.cached_tokens = usage["input_tokens_details"]["cached_tokens"]
    return said


def _of_messages(parts: Sequence[dict[str, Any]], streamed: bool, choice: int) -> Heard:
    said = Heard()
    blocks: list[dict[str, Any]] = [] if streamed else parts[0]["content"]
    usage: dict[str, Any] = {} if streamed else parts[0]["usage"]
    reason = None if streamed else parts[0]["stop_reason"]
    for part in parts if streamed else ():
        if part["type"] == "message_start":
            usage |= part["message"]["usage"]
        if part["type"] == "content_block_start":
            blocks.append(dict(part["content_block"], input_json=""))
        if part["type"] == "content_block_delta":
            delta = part["delta"]
            for name, into in (("text", "text"), ("thinking", "thinking"), ("partial_json", "input_json")):
                if name in delta:
                    blocks[part["index"]][into] += delta[name]
        if part["type"] == "message_delta":
            reason = part["delta"]["stop_reason"]
            usage |= {name: value for name, value in part["usage"].items() if value is not None}
    for block in blocks:
        if block["type"] == "tool_use":
            said.calls.append((block["name"], json.loads(block["input_json"]) if streamed else block["input"]))
        said.text += block.get("text", "")
        said.thoughts += block.get("thinking", "")
    said.ended = _ENDED[str(reason)]
    said.cached_tokens = usage["cache_read_input_tokens"]
    said.prompt_tokens = usage["input_tokens"] + said.cached_tokens + usage["cache_creation_input_tokens"]
    said.completion_tokens = usage["output_tokens"]
    return said


def _of_generate(parts: Sequence[dict[str, Any]], streamed: bool, choice: int) -> Heard:
    last = parts[-1]  # of a stream, each has all text so far
    meta = last["meta_info"]
    ended = _ENDED[meta["finish_reason"]["type"]]
    counts = [meta[name] for name in ("prompt_tokens", "cached_tokens", "completion_tokens")]
    return Heard(last["text"], [], "", "", ended, *counts)


_HEARING = {
    "chat": _of_choices,
    "completions": _of_choices,
    "responses": _of_responses,
    "messages": _of_messages,
    "generate": _of_generate,
}
