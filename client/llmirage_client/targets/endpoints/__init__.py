"""The APIs a run can speak, one module each."""

from __future__ import annotations

from llmirage_client.choices import EndpointName
from llmirage_client.targets.endpoints.chat import ChatEndpoint, CompletionsEndpoint
from llmirage_client.targets.endpoints.messages import MessagesEndpoint
from llmirage_client.targets.endpoints.protocol import Endpoint, TurnRequest
from llmirage_client.targets.endpoints.raw import RawEndpoint
from llmirage_client.targets.endpoints.responses import ResponsesEndpoint

__all__ = ["CHAT", "Endpoint", "EndpointName", "TurnRequest", "endpoint_named"]

CHAT = ChatEndpoint()


def endpoint_named(name: EndpointName, tokenizer: str | None = None) -> Endpoint:
    """Return the API of a name.

    tokenizer: whose chat template writes the prompts of completions; see CompletionsEndpoint.
    """
    match name:
        case "chat":
            return CHAT
        case "completions":
            return CompletionsEndpoint(tokenizer)
        case "responses":
            return ResponsesEndpoint()
        case "messages":
            return MessagesEndpoint()
        case "raw":
            return RawEndpoint()
