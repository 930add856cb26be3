"""Additions of other vendors to completions.

SGLang's `sglext` says where the cached tokens of a prompt came from, for requests with `return_cached_tokens_details`.
Azure's content filters never find anything here; their categories and form, and the chunks that have them, are those of
streams recorded from Azure OpenAI in August 2026 (models of GPT-5.4): a first event without choices for the prompts, then an
object for each choice, empty in chunks without text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmirage_server.http.exchange import HttpExchange
from llmirage_server.service.generation import Generation
from llmirage_shared.wire.output import ChunkFrame, encoded, event

_ASKING = "return_cached_tokens_details"


def cached_details(generation: Generation, exchange: HttpExchange) -> dict[str, Any]:
    """Return the keys of the response, none in other dialects. With KV offload the cluster does not know it by prompt."""
    if not (exchange.dialect.sglext and exchange.body.get(_ASKING) is True):
        return {}
    if any(instance.tiers for instance in generation.responses.driver.snapshot()):
        return {}
    return {"sglext": {"cached_tokens_details": {"device": generation.choices[0].request.cached_tokens, "host": 0}}}


_SAFE: Mapping[str, Any] = {
    category: {"filtered": False, "severity": "safe"} for category in ("hate", "self_harm", "sexual", "violence")
}
_UNDETECTED: Mapping[str, Any] = {"filtered": False, "detected": False}
_OF_TEXT = {**_SAFE, "protected_material_code": _UNDETECTED, "protected_material_text": _UNDETECTED}
_KEY = "content_filter_results"


def _of_prompts(prompts: int) -> dict[str, Any]:
    results = {**_SAFE, "jailbreak": _UNDETECTED}
    return {"prompt_filter_results": [{"prompt_index": index, _KEY: results} for index in range(prompts)]}


def filtered(completion: dict[str, Any], prompts: int = 1) -> dict[str, Any]:
    """Return a whole completion with verdicts on its prompts and choices; tool calls have empty ones."""
    choices = [{**choice, _KEY: _OF_TEXT if _says(choice) else {}} for choice in completion["choices"]]
    return {**completion, "choices": choices, **_of_prompts(prompts)}


def filtered_opening(prompts: int = 1) -> bytes:
    """Return the first event of a stream."""
    return event({"choices": [], "created": 0, "id": "", "model": "", "object": "", **_of_prompts(prompts)})


def filtered_frame(frame: ChunkFrame) -> ChunkFrame:
    """Return the frame of a choice's chunks with verdicts."""
    said, silent = (b"," + encoded({_KEY: results})[1:-1] for results in (_OF_TEXT, {}))
    return frame.with_keys(said, silent)


def _says(choice: Mapping[str, Any]) -> bool:
    return bool(choice.get("text") or choice.get("message", {}).get("content"))
