"""Reply sources by name, and those of the user's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from llmirage_server.replies.compose import ComposedReplies
from llmirage_server.replies.draft import Draft, stopped_at_token, with_end_shown
from llmirage_server.replies.lengths import ReplyLengths
from llmirage_server.replies.prose import EchoReplies, ProseReplies
from llmirage_server.replies.reply import Reply, ReplyRequest, ReplySource, Tool
from llmirage_shared.extensions import error_text, find_extension
from llmirage_shared.tokens import TokenIds, Tokenizer
from llmirage_shared.wire.errors import ApiError

OwnReply = Callable[[ReplyRequest], Any]
"""A reply source of the user's own: returns a text, a list of tool calls (objects with `name` and `arguments`), or None for
a reply of prose."""


def make_reply_source(
    name: str,
    tokenizer: Tokenizer,
    seed: int = 0,
    *,
    exact_length: bool = False,
    lengths: ReplyLengths | None = None,
    remember: Callable[[str, TokenIds], None] = lambda text, ids: None,
) -> ReplySource:
    """Return the source of that name: prose, echo or an extension. Raises ValueError for any other.

    exact_length is theirs; lengths and remember are those of prose.
    """
    if name == "echo":
        return ComposedReplies(tokenizer, EchoReplies(tokenizer, exact_length=exact_length), seed, converses=False)
    prose = ProseReplies(tokenizer, seed, exact_length=exact_length, lengths=lengths, remember=remember)
    composed = ComposedReplies(tokenizer, prose, seed)
    if name == "prose":
        return composed
    function = find_extension("reply source", name)
    if not callable(function):
        raise ValueError(f"reply source {name!r}: it must be a function of the request, not {function!r}")
    return OwnReplies(name, function, tokenizer, composed)


class OwnReplies:
    """Replies of a function of the user's own, cut where the request says.

    Attributes:
        prose: The source of the reply where the function returns None.
    """

    def __init__(self, name: str, function: OwnReply, tokenizer: Tokenizer, prose: ReplySource) -> None:
        self._name = name
        self._function = function
        self._tokenizer = tokenizer
        self.prose = prose

    def reply(self, request: ReplyRequest) -> Reply:
        """Return the plan for one choice. Raises ApiError if the function raises or returns something else."""
        try:
            said = self._function(request)
        except Exception as error:
            raise self._problem(f"raised {error_text(error)}") from error
        if said is None:
            return self.prose.reply(request)
        most = request.limit_tokens if request.max_tokens is None else min(request.max_tokens, request.limit_tokens)
        draft = Draft(self._tokenizer, max(1, most))
        reply = None
        if isinstance(said, str):
            draft.write("text", said)
            reply = draft.stopped(request.stop, request.include_stop_str, request.min_tokens) if request.stop else None
        else:
            for name, arguments in self._calls(said):
                draft.call(next((tool for tool in request.tools if tool.name == name), Tool("function", name)), arguments)
        reply = reply or draft.reply("stop" if isinstance(said, str) else "tool_calls")
        if request.stop_token_ids:
            reply = stopped_at_token(reply, request.stop_token_ids, request.include_stop_str, request.min_tokens)
        return with_end_shown(reply, self._tokenizer) if request.shows_end else reply

    def _calls(self, said: Any) -> list[tuple[str, str]]:
        """Name and arguments, as text, of each call."""
        try:
            calls = [(str(call.name), call.arguments) for call in said]
        except (TypeError, AttributeError):
            calls = []
        if not calls:
            raise self._problem(f"returned {said!r}: it must return a text, a list of llmirage.ToolCall, or None")
        return [(name, given if isinstance(given, str) else json.dumps(given)) for name, given in calls]

    def _problem(self, problem: str) -> ApiError:
        return ApiError(f"reply source {self._name!r} {problem}", code="reply_source_error")
