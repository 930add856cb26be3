"""The tokens of one choice as the bytes of its stream."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from llmirage_server.api.generation import Choice
from llmirage_server.api.logprobs import ReplyLogprobs
from llmirage_shared.wire.chunks import ChoiceFrame, ChunkTemplate, encoded, escape
from llmirage_shared.wire.responses import new_call_id

Logprobs = Callable[[int], dict[str, Any]]  # the entry of logprobs.content for the token at a place


class ChoiceWriter(Protocol):
    """Called with growing ranges that leave nothing out. The first call is for the first token."""

    def tokens(self, start: int, end: int) -> bytes:
        """What tokens [start, end) of the reply add to the stream."""
        ...

    def ending(self) -> bytes:
        """What follows the last token."""
        ...


class PlainWriter:
    """Text alone: the fast way."""

    __slots__ = ("_choice", "_pieces", "_template")

    def __init__(self, choice: Choice, template: ChunkTemplate) -> None:
        self._choice = choice
        self._pieces = choice.reply.pieces
        self._template = template

    def tokens(self, start: int, end: int) -> bytes:
        template = self._template
        if end - start == 1:
            piece = self._pieces[start]
            data = template.head + escape(piece) + template.tail if piece else b""
        elif self._choice.joined:  # as engines do with the tokens that one step's speculation brought
            data = template.joined(self._pieces[start:end])
        else:
            data = template.chunks(self._pieces[start:end])
        if start == 0:
            data = template.opening + template.chunks([self._choice.echo]) + data
        return data

    def ending(self) -> bytes:
        return self._template.ending(self._choice.reply.finish_reason, self._choice.reply.stop_reason)


class ChatWriter:
    """Chat chunks of replies that are more than plain text: thoughts, tool calls, log probabilities, usage as it grows."""

    def __init__(
        self,
        choice: Choice,
        frame: ChoiceFrame,
        *,
        finish_reason: str,
        legacy_functions: bool = False,
        show_reasoning: bool = True,
        logprobs: Logprobs | None = None,
        usage: Callable[[], dict[str, Any]] | None = None,
        token_ids: bool = False,
    ) -> None:
        """usage: the usage so far, where every chunk carries it; without, chunks are as `frame` has them."""
        reply = choice.reply
        self._choice = choice
        self._frame = frame
        self._pieces = reply.pieces
        self._parts = reply.all_parts
        self._finish_reason = finish_reason
        self._legacy = legacy_functions
        self._show_reasoning = show_reasoning
        self._logprobs = logprobs
        self._usage = usage
        self._token_ids = token_ids
        self._untold: list[int] = []  # ids of tokens that no chunk has told of
        self._at = 0  # index of the part that the next token belongs to, or comes before
        self._opened = -1  # index of the last part whose opening was sent
        self._calls = 0

    def tokens(self, start: int, end: int) -> bytes:
        chunks = []
        if start == 0:
            speaks = any(part.kind == "text" for part in self._parts) or not self._parts
            first = {"role": "assistant", "content": "" if speaks else None, "refusal": None}
            prompt = self._choice.request.prompt.tolist() if self._token_ids else None
            chunks.append(self._chunk(first, prompt_ids=prompt))
        chunks += [self._token(place) for place in range(start, end)]
        return b"".join(chunks)

    def ending(self) -> bytes:
        reply = self._choice.reply
        more: dict[str, Any] = {} if reply.stop_reason is None else {"stop_reason": reply.stop_reason}
        return self._chunk({}, finish_reason=self._finish_reason, **more, **self._told_ids())

    def _told_ids(self) -> dict[str, Any]:
        """The ids that the next chunk tells of: of tokens that showed nothing, too."""
        if not self._untold:
            return {}
        told, self._untold = self._untold, []
        return {"token_ids": told}

    def _token(self, place: int) -> bytes:
        parts = self._parts
        if self._token_ids:
            self._untold.append(int(self._choice.reply.ids[place]))
        while self._at < len(parts) and place >= parts[self._at].end:
            self._at += 1
        if self._at == len(parts) or place < parts[self._at].start:
            return b""
        part, piece = parts[self._at], self._pieces[place]
        opening = b""
        if part.kind.endswith("_call") and self._opened != self._at:
            self._opened = self._at
            opening = self._chunk(self._call_opening(part.kind, part.name))
            self._calls += 1
        if not piece:
            return opening
        if part.kind == "reasoning" and not self._show_reasoning:
            return b""
        more = self._told_ids()
        if part.kind == "text":
            logprobs = None if self._logprobs is None else {"content": [self._logprobs(place)], "refusal": None}
            return opening + self._chunk({"content": piece}, logprobs, **more)
        if part.kind == "refusal":
            logprobs = None if self._logprobs is None else {"content": None, "refusal": [self._logprobs(place)]}
            return self._chunk({"refusal": piece}, logprobs, **more)
        if part.kind == "reasoning":
            return self._chunk({"reasoning_content": piece, "reasoning": piece}, **more)
        return opening + self._chunk(self._call_delta(part.kind, piece), **more)

    def _call_opening(self, kind: str, name: str) -> dict[str, Any]:
        if self._legacy:
            return {"function_call": {"name": name, "arguments": ""}}
        inner = {"type": "function", "function": {"name": name, "arguments": ""}}
        if kind == "custom_call":
            inner = {"type": "custom", "custom": {"name": name, "input": ""}}
        return {"tool_calls": [{"index": self._calls, "id": new_call_id(), **inner}]}

    def _call_delta(self, kind: str, piece: str) -> dict[str, Any]:
        if self._legacy:
            return {"function_call": {"arguments": piece}}
        inner = {"custom": {"input": piece}} if kind == "custom_call" else {"function": {"arguments": piece}}
        return {"tool_calls": [{"index": self._calls - 1, **inner}]}

    def _chunk(
        self,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None = None,
        finish_reason: str | None = None,
        *,
        prompt_ids: list[int] | None = None,
        **more: Any,
    ) -> bytes:
        choice = encoded({"delta": delta, "logprobs": logprobs, "finish_reason": finish_reason, **more})
        told = b"" if prompt_ids is None else b"," + encoded({"prompt_token_ids": prompt_ids})[1:-1]
        return self._frame.chunk(choice, None if self._usage is None else encoded(self._usage()), told)


class TextWriter:
    """Chunks of text completions with log probabilities, or without words of their own (`silent`)."""

    def __init__(
        self,
        choice: Choice,
        frame: ChoiceFrame,
        logprobs: ReplyLogprobs | None,
        *,
        silent: bool = False,
        usage: Callable[[], dict[str, Any]] | None = None,
        prompt_pieces: list[str] | None = None,
        token_ids: bool = False,
    ) -> None:
        self._token_ids = token_ids
        self._begun = False  # a chunk was made
        self._told = 0  # ids of the reply that chunks have told of
        self._choice = choice
        self._frame = frame
        self._all = None if logprobs is None else logprobs.text(prompt_pieces)
        self._silent = silent
        self._usage = usage
        self._entry = 0  # of the lists of log probabilities: the next to send
        self._echoed = len(prompt_pieces or ()) if choice.echo else 0

    def tokens(self, start: int, end: int) -> bytes:
        data = self._chunk(self._choice.echo, self._echoed) if start == 0 and self._choice.echo else b""
        if self._silent:
            return data
        pieces = self._choice.reply.pieces
        return data + b"".join(
            [self._chunk(pieces[place], 1, ids_to=place + 1) for place in range(start, end) if pieces[place]]
        )

    def ending(self) -> bytes:
        reply = self._choice.reply
        return self._chunk("", 0, reply.finish_reason, reply.stop_reason, ids_to=0 if self._silent else len(reply.ids))

    def _chunk(
        self,
        text: str,
        entries: int,
        finish_reason: str | None = None,
        stop_reason: str | int | None = None,
        *,
        ids_to: int = 0,
    ) -> bytes:
        """entries: how many of the log probabilities go with it; ids_to: up to which token of the reply its ids are told."""
        logprobs = None
        if self._all is not None and entries:
            first, self._entry = self._entry, self._entry + entries
            logprobs = {name: values[first : self._entry] for name, values in self._all.items()}
        choice: dict[str, Any] = {"text": text, "logprobs": logprobs, "finish_reason": finish_reason}
        if stop_reason is not None:
            choice["stop_reason"] = stop_reason
        if self._token_ids:
            if not self._begun:
                choice["prompt_token_ids"] = self._choice.request.prompt.tolist()
            choice["token_ids"] = self._choice.reply.ids[self._told : ids_to].tolist()
            self._begun, self._told = True, max(self._told, ids_to)
        return self._frame.chunk(encoded(choice), None if self._usage is None else encoded(self._usage()))
