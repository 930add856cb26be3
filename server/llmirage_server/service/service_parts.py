"""What a service is given beside its cluster: scripts and batches, as it knows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from llmirage_server.http.exchange import HttpExchange
from llmirage_server.replies.reply import Reply, ReplyRequest
from llmirage_shared.tokens import Tokenizer
from llmirage_shared.wire.chat import ChatHistory


class ScriptedReplies(Protocol):
    """What a script says to one request."""

    @property
    def usage(self) -> Mapping[str, int]:
        """Counts to report instead of the real ones."""
        ...

    def reply(
        self, prompt: int, request: ReplyRequest, tokenizer: Tokenizer, generated: Callable[[ReplyRequest], Reply]
    ) -> Reply:
        """The reply to one choice of a prompt. Raises ApiError for a rule that cannot reply to it."""
        ...


class ScriptSource(Protocol):
    """The scripts of a server."""

    async def answer(
        self, exchange: HttpExchange, history: ChatHistory, users: Sequence[str], streamed: bool
    ) -> ScriptedReplies | None:
        """What they say to a request, None if nothing; after a fault or a delay of theirs.

        users: the last user message, or each prompt. Raises ApiError for a request that they refuse.
        """
        ...

    def add(self, data: Mapping[str, Any]) -> None:
        """Put rules before all others. data: a script. Raises ConfigError."""
        ...

    def replace(self, data: Mapping[str, Any]) -> None:
        """Drop all rules for these; files are not read any more. data: a script. Raises ConfigError."""
        ...

    def shown(self) -> dict[str, Any]:
        """The rules in force and how often each has replied, as JSON data."""
        ...


class Batches(Protocol):
    """The batches of a server."""

    def resume(self) -> None:
        """Let those that have not ended go on."""
        ...

    def close(self) -> None: ...

    def exposition(self) -> str:
        """Counts in Prometheus's text format 0.0.4."""
        ...
