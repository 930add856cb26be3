"""Requests that only read: embeddings, scores and moderation cost the cluster the prefill of their prompts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from llmirage_server.api.exchange import HttpExchange
from llmirage_server.api.generation import Choice, Generation
from llmirage_server.api.service import Service
from llmirage_server.api.whole import finish
from llmirage_server.replies.reply import Reply
from llmirage_shared.tokens import TokenIds

_ONE_TOKEN = np.zeros(1, dtype=np.int32)  # a prefill ends with one token
_EMPTY_REPLY = Reply(_ONE_TOKEN, [""], "stop")


async def prefill(service: Service, model: str, prompts: Sequence[TokenIds], exchange: HttpExchange) -> None:
    """Wait until the cluster has read these prompts. A model that is not served stands for the first one.

    A prompt longer than the context window costs as much as the longest that fits. Raises ClientGoneError if the client
    leaves first (the cluster's memory is free then), and ApiError while the server refuses requests.
    """
    service.check_open()
    served = service.models.find(model if model in service.models.served else service.models.served[0])
    longest = max(1, served.max_model_len - 1)
    requests = [
        service.new_request(prompt[:longest], _ONE_TOKEN, served.model, max_tokens=1) for prompt in prompts if len(prompt)
    ]
    if requests:
        choices = [Choice(_EMPTY_REPLY, request, "") for request in requests]
        await finish(Generation(service, choices, 1, exchange.arrived_s), exchange)
