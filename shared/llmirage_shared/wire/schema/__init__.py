"""Request bodies as pydantic models: accepted, documented in /openapi.json, and refused in the API's own words.

    from llmirage_shared.wire import schema
    request = schema.chat.ChatCompletionRequest.check(body)

Each module is imported when it is first used: pydantic and the models take a tenth of a second, which the start of a server
must not wait for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llmirage_shared.wire.schema import batches as batches
    from llmirage_shared.wire.schema import chat as chat
    from llmirage_shared.wire.schema import embeddings as embeddings
    from llmirage_shared.wire.schema import engines as engines
    from llmirage_shared.wire.schema import messages as messages
    from llmirage_shared.wire.schema import responses as responses
else:
    from importlib import import_module
    from types import ModuleType

    def __getattr__(name: str) -> ModuleType:
        """Import a module of this package at its first use (PEP 562)."""
        try:
            return import_module(f"{__name__}.{name}")
        except ModuleNotFoundError:
            raise AttributeError(f"there is no module {name!r} in {__name__}") from None
