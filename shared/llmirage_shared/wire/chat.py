"""POST /v1/chat/completions: from the JSON object to a checked request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmirage_shared.wire import errors
from llmirage_shared.wire.fields import Fields
from llmirage_shared.wire.sampling import Sampling, read_sampling

ROLES = ("system", "assistant", "user", "function", "tool", "developer")
_TEXT_PARTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_MEDIA_PARTS = ("image_url", "input_audio", "file")


@dataclass(slots=True, frozen=True)
class ChatRequest:
    """A checked chat request.

    messages: content is a string, None, or a list of parts if one of them is an image, sound or file (text alone is joined);
    everything else is as it was sent.
    """

    model: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    sampling: Sampling

    @property
    def last_user_text(self) -> str:
        """What the user said last; if there is no user message, what was said last."""
        said = [message for message in self.messages if message["role"] == "user"] or self.messages
        content = said[-1].get("content") or ""
        if isinstance(content, str):
            return content
        return "".join(part["text"] for part in content if part["type"] == "text")


def parse_chat(body: Mapping[str, Any]) -> ChatRequest:
    """Check a chat body. Raises ApiError naming the first field that is wrong, in the words of the OpenAI API."""
    fields = Fields(body)
    model = fields.required_string("model")
    messages = _read_messages(body)
    tools = _read_tools(body)
    _refuse_what_is_not_imitated(fields, tools)
    limit = fields.integer("max_completion_tokens", 1)
    if limit is None:
        limit = fields.integer("max_tokens", 1)
    return ChatRequest(model, messages, tools, read_sampling(fields, limit))


def _read_messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    if "messages" not in body:
        raise errors.missing("messages")
    messages = body["messages"]
    if not isinstance(messages, list):
        raise errors.wrong_type("messages", "an array of objects", messages)
    if not messages:
        raise errors.empty_array("messages")
    return [_read_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _read_message(message: Any, path: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise errors.wrong_type(path, "an object", message)
    if "role" not in message:
        raise errors.missing(f"{path}.role")
    role = message["role"]
    if not isinstance(role, str):
        raise errors.wrong_type(f"{path}.role", "a string", role)
    if role not in ROLES:
        raise errors.not_a_choice(f"{path}.role", role, ROLES)
    calls = message.get("tool_calls")
    if calls is not None:
        _check_tool_calls(calls, f"{path}.tool_calls")
    content = message.get("content")
    if isinstance(content, str):
        return message
    if content is None:
        if role != "assistant":
            if "content" not in message:
                raise errors.missing(f"{path}.content")
            raise errors.wrong_type(f"{path}.content", "a string or an array of content parts", content)
        return message
    if not isinstance(content, list):
        raise errors.wrong_type(f"{path}.content", "a string or an array of content parts", content)
    texts = _read_parts(content, f"{path}.content")
    return message if texts is None else {**message, "content": "\n".join(texts)}


def _read_parts(parts: list[Any], path: str) -> list[str] | None:
    """The texts of the parts; None when they are not all text."""
    texts: list[str] = []
    all_text = True
    for index, part in enumerate(parts):
        where = f"{path}[{index}]"
        if not isinstance(part, dict):
            raise errors.wrong_type(where, "an object", part)
        kind = part.get("type")
        if kind is None:
            raise errors.missing(f"{where}.type")
        if not isinstance(kind, str):
            raise errors.wrong_type(f"{where}.type", "a string", kind)
        if kind in _MEDIA_PARTS:
            if Fields(part, where).mapping(kind) is None:
                raise errors.missing(f"{where}.{kind}")
            all_text = False
        elif kind in _TEXT_PARTS:
            texts.append(Fields(part, where).required_string(_TEXT_PARTS[kind]))
        else:
            raise errors.not_a_choice(f"{where}.type", kind, (*_TEXT_PARTS, *_MEDIA_PARTS))
    return texts if all_text else None


def _check_tool_calls(calls: Any, path: str) -> None:
    if not isinstance(calls, list):
        raise errors.wrong_type(path, "an array of objects", calls)
    for index, call in enumerate(calls):
        where = f"{path}[{index}]"
        if not isinstance(call, dict):
            raise errors.wrong_type(where, "an object", call)
        for kind, text in (("function", "arguments"), ("custom", "input")):
            if call.get("type", "function") == kind:
                function = Fields(call, where).mapping(kind)
                if function is None:
                    raise errors.missing(f"{where}.{kind}")
                function.required_string("name")
                function.required_string(text)


def _read_tools(body: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    tools = body.get("tools")
    if tools is None:
        return None
    if not isinstance(tools, list):
        raise errors.wrong_type("tools", "an array of objects", tools)
    for index, tool in enumerate(tools):
        if not isinstance(tool, dict):
            raise errors.wrong_type(f"tools[{index}]", "an object", tool)
        fields = Fields(tool, f"tools[{index}]")
        kind = fields.required_string("type")
        if kind in ("function", "custom"):
            definition = fields.mapping(kind)
            if definition is None:
                raise errors.missing(f"tools[{index}].{kind}")
            definition.required_string("name")
    return tools or None


def _refuse_what_is_not_imitated(fields: Fields, tools: list[dict[str, Any]] | None) -> None:
    top_logprobs = fields.integer("top_logprobs", 0, 20)
    if fields.boolean("logprobs") or top_logprobs:
        raise errors.unsupported(
            "logprobs", "Log probabilities are not supported: this server has no probabilities to report."
        )
    response_format = fields.mapping("response_format")
    if response_format is not None and response_format.required_string("type") != "text":
        kind = response_format.choice("type", ("text", "json_object", "json_schema"))
        raise errors.unsupported(
            "response_format", f"response_format of type '{kind}' is not supported yet: replies are plain text, not JSON."
        )
    tool_choice = fields.raw("tool_choice")
    if tool_choice is None or tool_choice in ("auto", "none"):
        return
    if not isinstance(tool_choice, str | dict):
        raise errors.wrong_type("tool_choice", "a string or an object", tool_choice)
    if isinstance(tool_choice, str) and tool_choice != "required":
        raise errors.not_a_choice("tool_choice", tool_choice, ("none", "auto", "required"))
    if not tools:
        raise errors.invalid_value("tool_choice", "'tool_choice' is only allowed when 'tools' are specified.")
    raise errors.unsupported(
        "tool_choice", "A forced tool call is not supported yet: replies are text. Use tool_choice 'auto' or 'none'."
    )
