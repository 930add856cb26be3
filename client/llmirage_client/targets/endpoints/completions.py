"""Text completions: POST /completions.

A conversation becomes one prompt by the chat template of the run's tokenizer; a text
that stands alone is a prompt already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from llmirage_client.targets.endpoints.chat import ChatEndpoint
from llmirage_client.targets.endpoints.protocol import TurnRequest
from llmirage_client.targets.reply import dicts
from llmirage_shared.chat_template import ChatTemplate, ChatTemplateError
from llmirage_shared.tokenizer_loader import load

_OF_TOOLS = ("tool_choice", "parallel_tool_calls")  # this API has no tools: they are words in the prompt


class CompletionsEndpoint(ChatEndpoint):
    """tokenizer: folder or hub name of the one whose template writes prompts; None: the embedded one. Loaded when needed."""

    name = "completions"
    path = "/completions"

    def __init__(self, tokenizer: str | None = None) -> None:
        self._tokenizer = tokenizer

    @cached_property
    def _template(self) -> ChatTemplate:
        return load(self._tokenizer)[1]

    def items(self, messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Return the messages if a text prompt can carry them. Raises ChatTemplateError otherwise."""
        for message in messages:
            kinds = {part.get("type") for part in dicts(message.get("content"))} - {"text"}
            if kinds:
                raise ChatTemplateError(
                    f"a message with a part of type {min(map(str, kinds))!r} cannot be written into a prompt of text: "
                    "use --endpoint-type chat"
                )
        return messages

    def extra(self, extra: Mapping[str, Any]) -> Mapping[str, Any]:
        kept = {key: value for key, value in extra.items() if key not in _OF_TOOLS}
        return {"max_tokens" if key == "max_completion_tokens" else key: value for key, value in kept.items()}

    def body(self, request: TurnRequest) -> dict[str, Any]:
        """Return the request body. Raises TokenizerError and ChatTemplateError."""
        texts = _texts(request.items) if request.alone and not request.tools else []
        if texts:
            return prompt_body(texts[0] if len(texts) == 1 else texts, request)
        return prompt_body(self._template.render(request.items, request.tools), request)


def _texts(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the texts of a single user message and nothing else; several are prompts of their own, as AIPerf has it."""
    if len(messages) != 1 or messages[0].keys() != {"role", "content"} or messages[0]["role"] != "user":
        return []
    content = messages[0]["content"]
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in dicts(content) if isinstance(part.get("text"), str)]


def prompt_body(prompt: str | list[str] | list[int], request: TurnRequest) -> dict[str, Any]:
    """Return the body for a prompt that is written already, or given as token ids."""
    body: dict[str, Any] = {"prompt": prompt, "model": request.model, "stream": request.stream}
    if request.max_tokens is not None:
        body["max_tokens"] = request.max_tokens
    return body
