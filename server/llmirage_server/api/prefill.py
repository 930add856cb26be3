"""What reads without writing: embeddings, scores and judgements cost the cluster the prefill of their prompts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llmirage_server.api.exchange import Exchange
from llmirage_server.api.generation import Choice, Generation, Service
from llmirage_server.replies.reply import Reply
from llmirage_shared.tokens import TokenIds

_ONE_TOKEN = np.zeros(1, dtype=np.int32)  # with which a prefill ends
_SILENCE = Reply(_ONE_TOKEN, [""], "stop")


async def prefill(service: Service, model: str, prompts: Sequence[TokenIds], exchange: Exchange) -> None:
    """Let the cluster read these prompts, and wait until it has. Names that it does not serve stand for its first model.

    A prompt that is longer than the context window costs as much as the longest that fits. Raises ClientGoneError when the
    client leaves first (the cluster's memory is free then), and ApiError while the server refuses requests.
    """
    service.check_open()
    served = service.models.find(model if model in service.models.served else service.models.served[0])
    longest = max(1, served.max_model_len - 1)
    requests = [
        service.new_request(prompt[:longest], _ONE_TOKEN, served.model, max_tokens=1) for prompt in prompts if len(prompt)
    ]
    if requests:
        choices = [Choice(_SILENCE, request, "") for request in requests]
        await Generation(service, choices, 1, exchange.arrived_s).finish(exchange)
