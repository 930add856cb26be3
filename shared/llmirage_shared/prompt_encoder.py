"""Messages to the text of a prompt, by chat templates, and to token ids, each segment being tokenized once."""

from __future__ import annotations

import json
import sys
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np

from llmirage_shared.media import part_digest, part_tokens, read_file
from llmirage_shared.texts import joined
from llmirage_shared.tokens import TokenIds, Tokenizer

# The special tokens of the embedded tokenizer.
END_OF_TEXT = "<|end_of_text|>"
END_OF_TURN = "<|end_of_turn|>"
SYSTEM = "<|system|>"
DEVELOPER = "<|developer|>"
USER = "<|user|>"
ASSISTANT = "<|assistant|>"
TOOL = "<|tool|>"
TOOLS = "<|tools|>"
NAME = "<|name|>"
TOOL_CALL = "<|tool_call|>"
TOOL_ARGUMENTS = "<|tool_arguments|>"
END_OF_TOOL_CALL = "<|end_of_tool_call|>"
THINK = "<|think|>"
END_OF_THINK = "<|end_of_think|>"
IMAGE = "<|image|>"
AUDIO = "<|audio|>"
FILE = "<|file|>"
PAD = "<|pad|>"

SPECIAL_TOKENS = (
    END_OF_TEXT, END_OF_TURN, SYSTEM, DEVELOPER, USER, ASSISTANT, TOOL, TOOLS, NAME, TOOL_CALL, TOOL_ARGUMENTS,
    END_OF_TOOL_CALL, THINK, END_OF_THINK, IMAGE, AUDIO, FILE, PAD,
)  # fmt: skip

Message = Mapping[str, Any]
# Where a prompt ends: where the reply begins, after the last message, or inside it, so that the reply continues it.
Ending = Literal["reply", "message", "open"]

_ROLE_TOKENS = {
    "system": SYSTEM,
    "developer": DEVELOPER,
    "user": USER,
    "assistant": ASSISTANT,
    "tool": TOOL,
    "function": TOOL,  # deprecated name of a tool result
}

# The placeholder token of content parts that are not text, by type.
_PLACEHOLDERS = {"image_url": IMAGE, "input_image": IMAGE, "input_audio": AUDIO, "file": FILE, "input_file": FILE}


class ChatTemplate(Protocol):
    """The way one model family writes a conversation."""

    def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None, ending: Ending = "reply"
    ) -> str: ...


class ChatTemplateError(ValueError):
    """A refusal of the messages by the model's own chat template, with the template's message."""


class EmbeddedTemplate:
    """The template of the embedded tokenizer.

    A message is its role token, `author<|name|>` if it has a name, the content, and `<|end_of_turn|>`. Tools come first, so
    that conversations with the same tools share them as a prefix. The prompt ends with `<|assistant|>`: a reply followed
    by `<|end_of_turn|>` is, token for token, how the next request repeats it. Ids of tool calls are left out, since the
    server and not the model makes them; so is earlier reasoning, as in most models' templates.
    It never fails: a message with an unknown role becomes a user's message with the role as its name.
    """

    def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None, ending: Ending = "reply"
    ) -> str:
        parts: list[str] = []
        if tools:
            parts += [TOOLS, "\n".join(map(compact_json, tools)), END_OF_TURN]
        for message in messages:
            parts += _message(message)
        if ending == "open":
            parts.pop()
        elif ending == "reply":
            parts.append(ASSISTANT)
        return joined(parts)


def text_of(content: Any, placeholders: Mapping[str, str] = _PLACEHOLDERS) -> str:
    """Return a message's content (a string, null, or a list of parts) as text.

    Adjacent texts are joined by a line end. An image or sound becomes one placeholder for each of its tokens; a file becomes
    one and its text or, if that cannot be read, one for each of its estimated tokens.
    """
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        return compact_json(content)
    out: list[str] = []
    after_text = False
    for part in content:
        placeholder = placeholders.get(str(part.get("type"))) if isinstance(part, Mapping) else None
        if placeholder is None:
            out.append(("\n" if after_text else "") + _part_text(part))
        else:
            read = read_file(part) if placeholder == FILE else part_tokens(part)
            out += [_medium(part, placeholder, read)] if isinstance(read, int) else [placeholder, read]
        after_text = placeholder is None
    return joined(out)


def _medium(part: Mapping[str, Any], placeholder: str, tokens: int) -> str:
    """Return an image or a sound as placeholders, one a token.

    Two kinds of placeholder encode the digest that tells it apart.
    """
    if tokens < 2:
        return placeholder
    digest = part_digest(part)
    spelled = [FILE if digest >> bit & 1 else placeholder for bit in range(min(32, tokens - 1))]
    return placeholder + "".join(spelled) + placeholder * (tokens - 1 - len(spelled))


def compact_json(value: Any) -> str:
    """Return a value as JSON without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)


def _message(message: Message) -> list[str]:
    role = str(message.get("role") or "user")
    token = _ROLE_TOKENS.get(role)
    name = message.get("name") if token else role
    parts = [token or USER]
    if name:
        parts += [str(name), NAME]
    content = message.get("content")
    parts.append(text_of(content))
    refusal = message.get("refusal")
    if refusal and not content:
        parts.append(str(refusal))
    for function in called_functions(message):
        arguments = function.get("arguments", function.get("input", ""))
        parts += [
            TOOL_CALL,
            str(function.get("name") or ""),
            TOOL_ARGUMENTS,
            arguments if isinstance(arguments, str) else compact_json(arguments),
            END_OF_TOOL_CALL,
        ]
    parts.append(END_OF_TURN)
    return parts


def called_functions(message: Message) -> list[Mapping[str, Any]]:
    """Return the function or custom tool of each call in an assistant's message, with the deprecated `function_call`."""
    functions: list[Mapping[str, Any]] = []
    calls = message.get("tool_calls")
    for call in calls if isinstance(calls, Sequence) else ():
        if isinstance(call, Mapping):
            function = call.get("function") or call.get("custom") or call
            functions.append(function if isinstance(function, Mapping) else {"name": function})
    legacy = message.get("function_call")
    if isinstance(legacy, Mapping):
        functions.append(legacy)
    return functions


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping):
        for key in ("text", "refusal"):
            if isinstance(part.get(key), str):
                return str(part[key])
    return compact_json(part)


class PlainTemplate:
    """The template of a vocabulary without one: "role: content" and the end token, one message a line."""

    def __init__(self, end_token: str) -> None:
        self._end = end_token

    def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None, ending: Ending = "reply"
    ) -> str:
        lines = [f"tools: {compact_json(tool)}{self._end}\n" for tool in tools or ()]
        for message in messages:
            calls = [compact_json(function) for function in called_functions(message)]
            content = "\n".join([text_of(message.get("content"), {}), *calls])
            lines.append(f"{message.get('role') or 'user'}: {content}{self._end}\n")
        if ending == "open":
            lines[-1] = lines[-1].removesuffix(f"{self._end}\n")
        return joined([*lines, "assistant: "] if ending == "reply" else lines)


class JinjaTemplate:
    """A Hugging Face tokenizer's own chat template.

    It gets contents as strings, a developer's message as a system message, and arguments of tool calls as objects, as most
    models' templates expect.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def render(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] | None = None, ending: Ending = "reply"
    ) -> str:
        """Render the messages. Raises ChatTemplateError if the model's template refuses them."""
        plain = [_for_jinja(message) for message in messages]
        listed = [dict(tool) for tool in tools] if tools else None
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    plain,
                    tools=listed,
                    tokenize=False,
                    add_generation_prompt=ending == "reply",
                    continue_final_message=ending == "open",
                )
            )
        except Exception as error:  # a template is a program, and can fail in any way
            raise ChatTemplateError(f"the chat template of this model refuses the messages: {error}") from error


def _for_jinja(message: Message) -> dict[str, Any]:
    plain = {key: value for key, value in message.items() if value is not None}
    role = message.get("role") or "user"
    plain["role"] = {"developer": "system", "function": "tool"}.get(role, role)
    plain["content"] = text_of(message.get("content"), {}) or str(message.get("refusal") or "")
    functions = called_functions(message)
    if functions:
        plain["tool_calls"] = [{"type": "function", "function": _parsed(function)} for function in functions]
    return plain


def _parsed(function: Mapping[str, Any]) -> dict[str, Any]:
    arguments = function.get("arguments", function.get("input", ""))
    try:
        value = json.loads(arguments)
    except (TypeError, ValueError):
        value = arguments
    return {"name": str(function.get("name") or ""), "arguments": value}


CACHE_BYTES = 64 << 20
_ENTRY_BYTES = 400  # of a segment, beside its text and its ids: an array, a string and a place in the table


class PromptEncoder:
    """Rendering and tokenizing of prompts; `encode` may be called from several threads at once.

    cache: the segments that it knows.
    """

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, cache_bytes: int = CACHE_BYTES) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self.cache = self._cache = SegmentCache(cache_bytes)
        self._special = {token: _frozen(np.array([i], dtype=np.int32)) for token, i in tokenizer.special_tokens.items()}
        self._last_split: tuple[str, list[str]] = ("", [])

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        ending: Ending = "reply",
        *,
        answer_schema: Any = None,
    ) -> str:
        """Return the prompt's text.

        ending: see `Ending`.
        answer_schema: the JSON Schema that the answer must fit.

        Each API renders through this method, so a conversation has the same prompt tokens in all of them.
        """
        if answer_schema is not None:
            messages = _with_schema(messages, answer_schema)
        return self.template.render(messages, [_declaration(tool) for tool in tools] if tools else None, ending)

    def encode(self, text: str) -> TokenIds:
        """Return `tokenizer.encode(text)`: int32, shape (tokens,), read-only and maybe shared."""
        special, cache = self._special, self._cache
        arrays: list[TokenIds] = []
        for segment in self._split(text):
            ids = special.get(segment)
            if ids is None:
                ids = cache.get(segment)
                if ids is None:
                    ids = _frozen(self.tokenizer.encode(segment))
                    cache.put(segment, ids)
            arrays.append(ids)
        if len(arrays) == 1:
            return arrays[0]
        return np.concatenate(arrays) if arrays else np.empty(0, dtype=np.int32)

    def uncached_characters(self, text: str) -> int:
        """Return the number of characters `encode` would tokenize now. Call it off the event loop if that is large."""
        special, cache = self._special, self._cache
        return sum(len(segment) for segment in self._split(text) if segment not in special and segment not in cache)

    def remember(self, text: str, ids: TokenIds) -> None:
        """Cache a text with its ids, such as a reply that the next prompt repeats."""
        if self.tokenizer.segment_wise and text not in self._cache and self.tokenizer.segments(text) == [text]:
            self._cache.put(text, _frozen(ids[:]))

    def encode_chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> TokenIds:
        return self.encode(self.render(messages, tools))

    def _split(self, text: str) -> list[str]:
        # `uncached_characters` and `encode` are called for the same text, one after the other.
        last_text, segments = self._last_split
        if last_text is not text:
            segments = self.tokenizer.segments(text)
            self._last_split = (text, segments)
        return segments


class SegmentCache:
    """A map of segment text to ids, of at most `most_bytes`, that evicts the least recently used. Thread-safe."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._bytes = 0
        self._ids: OrderedDict[str, TokenIds] = OrderedDict()
        self._lock = threading.Lock()

    def bytes_kept(self) -> int:
        return self._bytes

    def __contains__(self, segment: str) -> bool:
        return segment in self._ids

    def get(self, segment: str) -> TokenIds | None:
        with self._lock:
            ids = self._ids.get(segment)
            if ids is not None:
                self._ids.move_to_end(segment)
            return ids

    def put(self, segment: str, ids: TokenIds) -> None:
        with self._lock:
            if segment in self._ids or (size := entry_bytes(segment, ids)) > self._most_bytes:
                return
            self._ids[segment] = ids
            self._bytes += size
            while self._bytes > self._most_bytes:
                self._bytes -= entry_bytes(*self._ids.popitem(last=False))


def entry_bytes(segment: str, ids: TokenIds) -> int:
    """Return the bytes of a segment in the cache."""
    return sys.getsizeof(segment) + ids.nbytes + _ENTRY_BYTES


def _frozen(ids: TokenIds) -> TokenIds:
    ids.flags.writeable = False
    return ids


def _declaration(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool in chat's form without parts that mean nothing to a model: nulls, empty descriptions, `strict`."""
    kind = str(tool.get("type"))
    inner = tool.get(kind)
    if not isinstance(inner, Mapping):
        return dict(tool)
    return {"type": kind, kind: {key: value for key, value in inner.items() if key != "strict" and value not in (None, "")}}


def _with_schema(messages: Sequence[Mapping[str, Any]], answer_schema: Any) -> Sequence[Mapping[str, Any]]:
    """Return the messages with the schema before the content of the first one.

    It joins that message, since many models' templates take no second system message, or none. The same first message and
    the same schema give the same text: the turns of a conversation share it as a prefix.
    """
    written = f"# Response format\n\n{compact_json(answer_schema)}\n\n"
    first, *others = messages
    content = first.get("content")
    if isinstance(content, str) or content is None:
        return [{**first, "content": written + (content or "")}, *others]
    return [{**first, "content": [{"type": "text", "text": written}, *content]}, *others]
