"""What kind of endpoint this is, from its list of models."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from llmirage_client.targets.fault import Fault

if TYPE_CHECKING:
    from llmirage_client.targets.target import Askable

PROBE_TIMEOUT_S = 2.0


@dataclass(frozen=True, slots=True)
class EndpointInfo:
    """kind: llmirage and vllm take token ids as prompts of /completions. models: names it serves, in its order.

    max_model_len: the first model's context length in tokens, where it is told. error: why nothing could be learned.
    """

    kind: Literal["llmirage", "vllm", "other"] = "other"
    models: list[str] = field(default_factory=list)
    max_model_len: int | None = None
    error: str | None = None


async def probe(target: Askable, timeout_s: float = PROBE_TIMEOUT_S) -> EndpointInfo:
    """Ask GET /models once. Never raises: an endpoint that does not answer properly is of kind "other", with no models."""
    try:
        async with asyncio.timeout(timeout_s):
            status, body = await target.get("/models")
    except TimeoutError:
        return EndpointInfo(error=f"no answer within {timeout_s:g} s")
    except Fault as error:
        return EndpointInfo(error=str(error))
    if status != 200:
        return EndpointInfo(error=f"HTTP {status}")
    try:
        value = json.loads(body)
    except ValueError:
        return EndpointInfo(error="the list of models is not JSON")
    data = value.get("data") if isinstance(value, dict) else None
    entries = [entry for entry in data if isinstance(entry, dict)] if isinstance(data, list) else []
    models = [entry["id"] for entry in entries if isinstance(entry.get("id"), str)]
    owners = {entry.get("owned_by") for entry in entries}
    limits = [entry["max_model_len"] for entry in entries if isinstance(entry.get("max_model_len"), int)]
    kind: Literal["llmirage", "vllm", "other"] = (
        "llmirage" if "llmirage" in owners else "vllm" if "vllm" in owners else "other"
    )
    return EndpointInfo(kind, models, limits[0] if limits else None)
