"""Chunks of completions that are more than plain text: thoughts, tool calls, log probabilities, token ids, growing usage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmirage_server.api.generation import Choice
from llmirage_server.api.logprobs import ReplyLogprobs
from llmirage_shared.wire.output import ChunkFrame, encoded, new_call_id

UsageSoFar = Callable[[Choice, int], dict[str, Any]]  # with so many tokens of the choice


class ChatWriter:
    """Chunks of one choice of a chat completion."""

    def __init__(
        self,
        choice: Choice,
        frame: ChunkFrame,
        *,
        finish_reason: str,
        legacy_functions: bool = False,
        show_reasoning: bool = True,
        logprobs: ReplyLogprobs | None = None,
        usage: UsageSoFar | None = None,
        token_ids: bool = False,
    ) -> None:
        """usage: the usage so far, if every chunk carries it; otherwise chunks are as `frame` has them."""
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
        self._unsent_ids: list[int] = []  # of tokens since the last chunk
        self._at = 0  # index of the next token's part, or of the part after it
        self._opened = -1  # index of the last part whose opening was sent
        self._calls = 0
        self._sent = 0  # tokens

    def tokens(self, start: int, end: int) -> bytes:
        chunks = []
        if start == 0:
            has_text = any(part.kind == "text" for part in self._parts) or not self._parts
            first = {"role": "assistant", "content": "" if has_text else None, "refusal": None}
            prompt = self._choice.request.prompt.tolist() if self._token_ids else None
            chunks.append(self._chunk(first, prompt_ids=prompt))
        for place in range(start, end):
            self._sent = place + 1
            chunks.append(self._token(place))
        return b"".join(chunks)

    def ending(self) -> bytes:
        reply = self._choice.reply
        more: dict[str, Any] = {} if reply.stop_reason is None else {"stop_reason": reply.stop_reason}
        return self._chunk({}, finish_reason=self._finish_reason, **more, **self._new_ids())

    def _new_ids(self) -> dict[str, Any]:
        """The ids since the last chunk, of tokens that showed nothing, too."""
        if not self._unsent_ids:
            return {}
        ids, self._unsent_ids = self._unsent_ids, []
        return {"token_ids": ids}

    def _token(self, place: int) -> bytes:
        parts = self._parts
        if self._token_ids:
            self._unsent_ids.append(int(self._choice.reply.ids[place]))
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
        more = self._new_ids()
        if part.kind == "text":
            logprobs = None if self._logprobs is None else {"content": [self._logprobs.entry(place)], "refusal": None}
            return opening + self._chunk({"content": piece}, logprobs, **more)
        if part.kind == "refusal":
            logprobs = None if self._logprobs is None else {"content": None, "refusal": [self._logprobs.entry(place)]}
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
        keys = b"" if prompt_ids is None else b"," + encoded({"prompt_token_ids": prompt_ids})[1:-1]
        usage = None if self._usage is None else encoded(self._usage(self._choice, self._sent))
        return self._frame.chunk(choice, usage, keys)


class TextWriter:
    """Chunks of one choice of a text completion. silent: the reply itself is left out."""

    def __init__(
        self,
        choice: Choice,
        frame: ChunkFrame,
        logprobs: ReplyLogprobs | None,
        *,
        silent: bool = False,
        usage: UsageSoFar | None = None,
        prompt_pieces: list[str] | None = None,
        token_ids: bool = False,
    ) -> None:
        self._token_ids = token_ids
        self._begun = False  # a chunk was made
        self._sent = 0  # tokens
        self._sent_ids = 0  # how many ids of the reply were sent
        self._choice = choice
        self._frame = frame
        self._all = None if logprobs is None else logprobs.text(prompt_pieces)
        self._silent = silent
        self._usage = usage
        self._entry = 0  # index of the next log probability to send
        self._echoed = len(prompt_pieces or ()) if choice.echo else 0

    def tokens(self, start: int, end: int) -> bytes:
        data = self._chunk(self._choice.echo, self._echoed) if start == 0 and self._choice.echo else b""
        if self._silent:
            return data
        pieces = self._choice.reply.pieces
        chunks = [data]
        for place in range(start, end):
            self._sent = place + 1
            if pieces[place]:
                chunks.append(self._chunk(pieces[place], 1, ids_to=place + 1))
        return b"".join(chunks)

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
        """entries: how many log probabilities it has; ids_to: up to which token of the reply it has ids."""
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
            choice["token_ids"] = self._choice.reply.ids[self._sent_ids : ids_to].tolist()
            self._begun, self._sent_ids = True, max(self._sent_ids, ids_to)
        usage = None if self._usage is None else encoded(self._usage(self._choice, self._sent))
        return self._frame.chunk(encoded(choice), usage)
