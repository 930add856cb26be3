"""SGLang's `sglext`: where the cached tokens of a prompt came from, for requests with `return_cached_tokens_details`."""

from __future__ import annotations

from typing import Any

from llmirage_server.http.exchange import HttpExchange
from llmirage_server.service.generation import Generation

_ASKING = "return_cached_tokens_details"


def cached_details(generation: Generation, exchange: HttpExchange) -> dict[str, Any]:
    """Return the keys of the response, none in other dialects. With KV offload the cluster does not know it by prompt."""
    if not (exchange.dialect.sglext and exchange.body.get(_ASKING) is True):
        return {}
    if any(instance.tiers for instance in generation.responses.driver.snapshot()):
        return {}
    return {"sglext": {"cached_tokens_details": {"device": generation.choices[0].request.cached_tokens, "host": 0}}}
