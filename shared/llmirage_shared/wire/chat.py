"""POST /v1/chat/completions: from the JSON object to a checked request."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llmirage_shared.chat_template import Ending
from llmirage_shared.wire import errors
from llmirage_shared.wire.errors import ApiError
from llmirage_shared.wire.sampling import Sampling, read_sampling

if TYPE_CHECKING:
    from llmirage_shared.wire.schema.chat import ChatCompletionRequest


# What a message of the assistant may have instead of content.
_DEEDS = frozenset(("tool_calls", "function_call", "refusal", "audio", "reasoning", "reasoning_content"))
# How agents tell of calls and results in words.
_CALLING = "Calling tools:"
_CALLED_NAME = re.compile(r"['\"]name['\"]: ?['\"]([\w.-]+)['\"]")
_OBSERVED = re.compile(r"\s*Observations?:\s*")


@dataclass(slots=True, frozen=True)
class ChatRequest:
    """A checked chat request.

    body: as it was validated. messages: content is a string, None, or a list of parts if one of them is an image, sound or
    file (text alone is joined); everything else is as it was sent. tools: as sent, legacy `functions` among them.
    """

    body: ChatCompletionRequest
    messages: list[dict[str, Any]]
    heard: Sequence[Mapping[str, Any]]  # `messages` as `observed` reads them
    tools: list[dict[str, Any]] | None
    sampling: Sampling

    @property
    def model(self) -> str:
        return self.body.model

    @property
    def schema(self) -> dict[str, Any] | None:
        """The JSON Schema of a `response_format`."""
        form = self.body.response_format
        return form.json_schema.schema_ if form is not None and form.type == "json_schema" else None

    @property
    def last_user_text(self) -> str:
        """What the user said last; if there is no user message, what was said last."""
        return last_user_text(self.heard)


def parse_chat(body: Mapping[str, Any]) -> ChatRequest:
    """Check a chat body. Raises ApiError naming the first field that is wrong, in the words of the OpenAI API."""
    from llmirage_shared.wire.schema.chat import ChatCompletionRequest
    from llmirage_shared.wire.schema.validation import check

    request = check(ChatCompletionRequest, body)
    messages = [joined(message) for message in body["messages"]]
    _check_said(messages)
    check_tool_pairs(messages)
    tools = list(body.get("tools") or ())
    tools += [{"type": "function", "function": function} for function in body.get("functions") or ()]
    _check_names(tools)
    if request.tool_choice is not None and request.tool_choice != "none" and not tools:
        raise errors.only_with(
            "tool_choice", "Invalid value for 'tool_choice': 'tool_choice' is only allowed when 'tools' are specified."
        )
    if request.parallel_tool_calls is not None and not tools:
        raise errors.only_with(
            "parallel_tool_calls",
            "Invalid value for 'parallel_tool_calls': 'parallel_tool_calls' is only allowed when 'tools' are specified.",
        )
    if request.top_logprobs is not None and not request.logprobs:
        raise errors.only_with("top_logprobs", "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled.")
    if (
        None not in (request.max_tokens, request.max_completion_tokens)
        and request.max_tokens != request.max_completion_tokens
    ):
        # Twice the same is what clients send that must please every kind of server.
        raise ApiError(
            "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported.",
            param="max_tokens",
            code="invalid_parameter_combination",
        )
    limit = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    return ChatRequest(request, messages, observed(messages), tools or None, read_sampling(request, limit, logprobs))


def prompt_ending(add_generation_prompt: bool | None, continue_final_message: bool | None) -> Ending:
    """Where the prompt of a conversation ends. Raises ApiError when that is contradictory."""
    if continue_final_message:
        if add_generation_prompt:
            raise errors.only_with(
                "continue_final_message", "Cannot set both `continue_final_message` and `add_generation_prompt` to True."
            )
        return "open"
    return "message" if add_generation_prompt is False else "reply"


def joined(message: dict[str, Any]) -> dict[str, Any]:
    """The message with content that is text alone as one string."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    texts = [part.get("text", part.get("refusal")) for part in content]
    return {**message, "content": "\n".join(texts)} if all(isinstance(text, str) for text in texts) else message


def last_user_text(messages: Sequence[Mapping[str, Any]]) -> str:
    """What the user said last; if there is no user message, what was said last."""
    said = [message for message in messages if message.get("role") == "user"] or messages
    return _text(said[-1].get("content"))


def _text(content: Any) -> str:
    if not content or isinstance(content, str):
        return content or ""
    return "".join(part["text"] for part in content if part["type"] == "text")


def observed(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The messages, where an agent tells calls and results in words (as smolagents does) as calls and results.

    That is: an assistant's "Calling tools: [{... 'name': 'search' ...}]" and a user's "Observation: ..." after it.
    """
    if not messages or messages[-1].get("role") != "user" or not _OBSERVED.match(_text(messages[-1].get("content"))):
        return messages
    told: list[Mapping[str, Any]] = []
    calls: list[dict[str, Any]] = []
    for message in messages:
        role, text = message.get("role"), _text(message.get("content"))
        if role == "assistant" and _CALLING in text:
            names = _CALLED_NAME.findall(text)
            calls = [{"id": f"{len(told)}.{place}", "function": {"name": name}} for place, name in enumerate(names)]
            told.append({"role": "assistant", "tool_calls": calls})
        elif role == "user" and calls and (observation := _OBSERVED.match(text)) is not None:
            seen = text[observation.end() :]
            told += [{"role": "tool", "tool_call_id": call["id"], "content": seen} for call in calls]
        else:
            told.append(message)
            calls = []
    return told


def calls_since_user(messages: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """(name, result) of the tools called after the last user message; "" for the result of a call without an answer.

    A call whose result comes after that message counts, too: some clients say the question again with the results.
    """
    names: dict[str, str] = {}  # of all calls, by id
    since: list[list[str]] = []  # name, result
    made: dict[str, list[list[str]]] = {}  # those of an id: the deprecated calls have none

    def call(key: str, name: str) -> None:
        names[key] = name
        since.append([name, ""])
        made.setdefault(key, []).append(since[-1])

    for message in messages:
        role = message.get("role")
        if role == "user":
            since, made = [], {}
        for called in message.get("tool_calls") or ():
            call(str(called.get("id")), (called.get("function") or called.get("custom") or {}).get("name", ""))
        if (legacy := message.get("function_call")) is not None and role == "assistant":
            call("", legacy.get("name", ""))
        if role in ("tool", "function"):
            key = str(message.get("tool_call_id") or "")
            if key not in made and key in names:
                call(key, names[key])
            for entry in made.get(key, ()):
                entry[1] = _text(message.get("content"))
    return [(name, result) for name, result in since]


def called_since_user(messages: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Names of the tools called after the last user message."""
    return tuple(name for name, _ in calls_since_user(messages))


def results_since_user(messages: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """What the tools called after the last user message gave, in the order of their calls."""
    return tuple(result for _, result in calls_since_user(messages))


def text_before_user(messages: Sequence[Mapping[str, Any]]) -> str:
    """What the user said before the last time; "" for a conversation's first words."""
    said = [message for message in messages if message.get("role") == "user"]
    return _text(said[-2].get("content")) if len(said) > 1 else ""


def called_before_user(messages: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Names of the tools called between the last user message and the one before."""
    last = max((index for index, message in enumerate(messages) if message.get("role") == "user"), default=0)
    return called_since_user(messages[:last])


def check_tool_pairs(messages: Sequence[Mapping[str, Any]]) -> None:
    """Every tool message answers a call of the assistant message before it, and every call is answered. Raises ApiError."""
    open_calls: dict[str, None] = {}
    ids: set[str] = set()  # of the last calls
    asked_at = -1
    known = False
    for index, message in enumerate(messages):
        role = message.get("role")
        if role == "tool":
            if not known:
                raise _pairing(
                    index, "messages with role 'tool' must be a response to a preceeding message with 'tool_calls'."
                )
            if ids and message["tool_call_id"] not in ids:
                raise ApiError(
                    f"Invalid parameter: 'tool_call_id' of '{errors.shorten(message['tool_call_id'])}' not found in "
                    "'tool_calls' of previous message.",
                    param=f"messages.[{index}].tool_call_id",
                )
            open_calls.pop(message["tool_call_id"], None)
            continue
        if open_calls:
            raise _unanswered(asked_at, open_calls)
        calls = message.get("tool_calls") or () if role == "assistant" else ()
        open_calls = {call["id"]: None for call in calls if isinstance(call.get("id"), str)}
        ids = set(open_calls)
        known, asked_at = bool(calls), index
    if open_calls:
        raise _unanswered(asked_at, open_calls)


def _check_said(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raises ApiError for a message of the assistant that says and does nothing."""
    for index, message in enumerate(messages):
        if message.get("role") == "assistant" and message.get("content") is None and not _DEEDS & message.keys():
            raise ApiError("Invalid value for 'content': expected a string, got null.", param=f"messages.[{index}].content")


def _unanswered(index: int, ids: Mapping[str, None]) -> ApiError:
    return _pairing(
        index,
        "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'. The "
        f"following tool_call_ids did not have response messages: {', '.join(ids)}",
    )


def _pairing(index: int, message: str) -> ApiError:
    return ApiError(f"Invalid parameter: {message}", param=f"messages.[{index}].role")


def _check_names(tools: Sequence[Mapping[str, Any]]) -> None:
    for index, tool in enumerate(tools):
        name = (tool.get("function") or tool.get("custom") or {}).get("name")
        if not isinstance(name, str):
            raise errors.missing(f"functions[{index}].name")
