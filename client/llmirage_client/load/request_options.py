"""What a run puts into its requests: settings of the endpoint's API, and of how prompts are written."""

# ruff: noqa: RUF009  what declares a setting is dataclasses.field with a fixed form of metadata

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llmirage_client.choices import EndpointKind, EndpointName, SessionPrefix, ToolResults
from llmirage_shared.settings import switch, under

ENDPOINT, WORKLOAD = "Endpoint", "Workload"
_endpoint = under(ENDPOINT)
_workload = under(WORKLOAD)


def _path(text: str) -> str:
    if "://" in text or any(not "!" <= character <= "~" for character in text):
        raise ValueError(f"{text!r} is not a path on the host, such as /v2/chat")
    return "/" + text.lstrip("/")


def _extra_inputs(values: Any) -> dict[str, Any]:
    """Each key:value, or a JSON object, merged in order. A value that is JSON (a number, true, [..]) is taken as that."""
    if isinstance(values, Mapping):
        return dict(values)
    merged: dict[str, Any] = {}
    for text in values:
        if text.lstrip().startswith("{"):
            try:
                merged |= json.loads(text)
            except ValueError as error:
                raise ValueError(f"{text!r} is not a JSON object: {error}") from None
            continue
        key, colon, value = text.partition(":")
        if not colon or not key:
            raise ValueError(f"{text!r} is neither key:value nor a JSON object")
        try:
            merged[key] = json.loads(value)
        except ValueError:
            merged[key] = value
    return merged


@dataclass(slots=True, frozen=True, kw_only=True, init=False, repr=False, eq=False)  # of RunOptions, which has these
class RequestOptions:
    """endpoint_kind: llmirage and vllm accept token ids as a prompt, and `ignore_eos` and `min_tokens`."""

    model: str = _endpoint(
        "", "Model of requests that do not name one.", short="m", unset="the only one the endpoint lists", usual=True
    )
    endpoint_type: EndpointName | None = _endpoint(
        None,
        "API to use: messages is Anthropic's; raw sends the file's bodies unchanged to --endpoint-path.",
        unset="chat; completions for token ids, if the endpoint is llmirage or vLLM",
        usual="run",
    )
    endpoint_kind: EndpointKind = "other"
    endpoint_path: str | None = _endpoint(
        None,
        "Path to use instead of the API's own, such as /v2/chat.",
        aliases=("custom_endpoint", "endpoint"),
        metavar="PATH",
        read=_path,
    )
    tool_results: ToolResults | None = _endpoint(
        None,
        "How the file's tool results follow a live reply: unchanged, with the ids of its tool calls, or exactly one "
        "per call.",
        unset="authored; fitted for responses and messages",
    )
    streaming: bool = _endpoint(True, "Request streamed replies.")
    extra_inputs: Mapping[str, Any] = _endpoint(
        {},
        "Field to add to every request body; the file's `extra` overrides it; may be repeated.",
        metavar="KEY:VALUE|JSON",
        read=_extra_inputs,
    )
    use_legacy_max_tokens: bool = switch(ENDPOINT, "Send max_tokens instead of max_completion_tokens.")
    session_header: str | None = _endpoint(None, "Header for the conversation's id, instead of X-Correlation-ID.")

    session_prefix: SessionPrefix = _workload(
        "extend",
        "Prompts given as token counts: each extends the session's previous prompt, or shares no prefix with it.",
        study=True,
    )
    tokenizer: str | None = _workload(
        None,
        "Folder or Hugging Face name of the endpoint's tokenizer, for prompts of exact length.",
        unset="the built-in one, which `llmirage serve` uses",
    )

    @property
    def takes_token_ids(self) -> bool:
        return self.endpoint_kind != "other"

    @property
    def knows_ignore_eos(self) -> bool:
        return self.endpoint_kind != "other"

    @property
    def counts_prompts(self) -> bool:
        """Whether the tokenizer here is, as far as anybody can know, the endpoint's."""
        return self.endpoint_kind == "llmirage" or self.tokenizer is not None
