"""Chunks of completions that are more than plain text: thoughts, tool calls, log probabilities, token ids, growing usage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llmirage_server.service.generation import Choice
from llmirage_server.service.logprobs import ReplyLogprobs
from llmirage_shared.wire.output import ChunkFrame, encoded, new_call_id

UsageAt = Callable[[int], dict[str, Any]]
"""Returns the usage of a choice at a number of its tokens."""


@dataclass(slots=True)
class _ChoiceEvent:
    """The content of one chunk. after: tokens of the reply that have come with it."""

    after: int
    choice: dict[str, Any]


class _ChoiceWriter:
    """Holds the last event back until the finish reason is known, where that belongs into it."""

    def __init__(self, choice: Choice, frame: ChunkFrame, usage: UsageAt | None, ends_with_token: bool) -> None:
        """usage: of every chunk; None: chunks are as `frame` has them."""
        self._choice = choice
        self._frame = frame
        self._usage = usage
        self._total = len(choice.reply.ids)
        self._ends_with_token = ends_with_token
        self._held: _ChoiceEvent | None = None

    def _chunks(self, events: Sequence[_ChoiceEvent], end: int) -> bytes:
        """end: the last tokens that have come."""
        if events and end == self._total and self._ends_with_token:
            *events, self._held = events
        return b"".join([self._chunk(event) for event in events])

    def _chunk(self, event: _ChoiceEvent, more: bytes = b"") -> bytes:
        usage = None if self._usage is None else encoded(self._usage(event.after))
        choice = event.choice
        says = bool(choice["delta"].get("content") if "delta" in choice else choice["text"])
        return self._frame.chunk(encoded(choice), usage, more, says)


class ChatWriter(_ChoiceWriter):
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
        usage: UsageAt | None = None,
        token_ids: bool = False,
        ends_with_token: bool = False,
    ) -> None:
        super().__init__(choice, frame, usage, ends_with_token)
        self._pieces = choice.reply.pieces
        self._parts = choice.reply.all_parts
        self._finish_reason = finish_reason
        self._legacy = legacy_functions
        self._show_reasoning = show_reasoning
        self._logprobs = logprobs
        self._token_ids = token_ids
        self._unsent_ids: list[int] = []  # of tokens since the last chunk
        self._at = 0  # index of the next token's part, or of the part after it
        self._opened = -1  # index of the last part whose opening was sent
        self._calls = 0

    def tokens(self, start: int, end: int) -> bytes:
        events = [event for place in range(start, end) for event in self._token(place)]
        if self._choice.joined and len(events) > 1:  # as engines send the tokens of one speculative step
            events = [_ChoiceEvent(end, _merged([event.choice for event in events]))]
        return (self._opening() if start == 0 else b"") + self._chunks(events, end)

    def ending(self) -> bytes:
        reply = self._choice.reply
        event = self._held or _ChoiceEvent(self._total, self._said({"content": ""} if self._ends_with_token else {}))
        event.choice["finish_reason"] = self._finish_reason
        if reply.stop_reason is not None:
            event.choice["stop_reason"] = reply.stop_reason
        if ids := self._new_ids():
            event.choice["token_ids"] = [*event.choice.get("token_ids", ()), *ids["token_ids"]]
        return self._chunk(event)

    def _opening(self) -> bytes:
        has_text = any(part.kind == "text" for part in self._parts) or not self._parts
        first = {"role": "assistant", "content": "" if has_text else None, "refusal": None}
        prompt = self._choice.request.prompt.tolist() if self._token_ids else None
        keys = b"" if prompt is None else b"," + encoded({"prompt_token_ids": prompt})[1:-1]
        return self._chunk(_ChoiceEvent(0, self._said(first)), keys)

    def _new_ids(self) -> dict[str, Any]:
        """Return the ids since the last chunk, of tokens that showed nothing, too."""
        if not self._unsent_ids:
            return {}
        ids, self._unsent_ids = self._unsent_ids, []
        return {"token_ids": ids}

    def _token(self, place: int) -> list[_ChoiceEvent]:
        parts = self._parts
        if self._token_ids:
            self._unsent_ids.append(int(self._choice.reply.ids[place]))
        while self._at < len(parts) and place >= parts[self._at].end:
            self._at += 1
        if self._at == len(parts) or place < parts[self._at].start:
            return []
        part, piece = parts[self._at], self._pieces[place]
        events: list[_ChoiceEvent] = []
        if part.kind.endswith("_call") and self._opened != self._at:
            self._opened = self._at
            events = [_ChoiceEvent(place + 1, self._said(self._call_opening(part.kind, part.name)))]
            self._calls += 1
        if not piece or (part.kind == "reasoning" and not self._show_reasoning):
            return events
        return [*events, _ChoiceEvent(place + 1, self._said(*self._delta(part.kind, piece, place), **self._new_ids()))]

    def _delta(self, kind: str, piece: str, place: int) -> tuple[dict[str, Any], dict[str, Any] | None]:
        """Return the delta of a token, and its log probabilities."""
        entries = self._logprobs
        if kind == "text":
            return {"content": piece}, None if entries is None else {"content": [entries.entry(place)], "refusal": None}
        if kind == "refusal":
            return {"refusal": piece}, None if entries is None else {"content": None, "refusal": [entries.entry(place)]}
        if kind == "reasoning":
            return {"reasoning_content": piece, "reasoning": piece}, None
        return self._call_delta(kind, piece), None

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

    @staticmethod
    def _said(delta: dict[str, Any], logprobs: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
        return {"delta": delta, "logprobs": logprobs, "finish_reason": None, **more}


def _merged(values: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One object of several: texts and lists are joined, objects merged; calls of the same index are one."""
    merged: dict[str, Any] = {}
    for value in values:
        for key, new in value.items():
            old = merged.get(key)
            if old is None or new is None:
                merged[key] = old if new is None else new
            elif isinstance(old, dict):
                merged[key] = _merged([old, new])
            elif key == "tool_calls" and old[-1]["index"] == new[0]["index"]:
                merged[key] = [*old[:-1], {**_merged([old[-1], {**new[0], "index": None}]), "index": new[0]["index"]}]
            else:
                merged[key] = old + new
    return merged


class TextWriter(_ChoiceWriter):
    """Chunks of one choice of a text completion. silent: the reply itself is left out."""

    def __init__(
        self,
        choice: Choice,
        frame: ChunkFrame,
        logprobs: ReplyLogprobs | None,
        *,
        silent: bool = False,
        usage: UsageAt | None = None,
        prompt_pieces: list[str] | None = None,
        token_ids: bool = False,
    ) -> None:
        super().__init__(choice, frame, usage, ends_with_token=not silent)
        self._token_ids = token_ids
        self._begun = False  # an event was made
        self._sent_ids = 0  # how many ids of the reply were sent
        self._all = None if logprobs is None else logprobs.text(prompt_pieces)
        self._silent = silent
        self._entry = 0  # index of the next log probability to send
        self._echoed = len(prompt_pieces or ()) if choice.echo else 0

    def tokens(self, start: int, end: int) -> bytes:
        events = [self._event(self._choice.echo, self._echoed, 0, 0)] if start == 0 and self._choice.echo else []
        if not self._silent:
            pieces = self._choice.reply.pieces
            steps = [range(start, end)] if self._choice.joined else [range(place, place + 1) for place in range(start, end)]
            for step in steps:
                shown = [pieces[place] for place in step if pieces[place]]
                if shown:
                    events.append(self._event("".join(shown), len(shown), step.stop, step.stop))
        return self._chunks(events, end)

    def ending(self) -> bytes:
        reply = self._choice.reply
        shown = 0 if self._silent else self._total
        event = self._held or self._event("", 0, shown, shown)
        event.choice["finish_reason"] = reply.finish_reason
        if reply.stop_reason is not None:
            event.choice["stop_reason"] = reply.stop_reason
        if self._token_ids and self._sent_ids < shown:
            event.choice["token_ids"] += reply.ids[self._sent_ids :].tolist()
        return self._chunk(event)

    def _event(self, text: str, entries: int, after: int, ids_to: int) -> _ChoiceEvent:
        """entries: how many log probabilities it has; ids_to: up to which token of the reply it has ids."""
        logprobs = None
        if self._all is not None and entries:
            first, self._entry = self._entry, self._entry + entries
            logprobs = {name: values[first : self._entry] for name, values in self._all.items()}
        choice: dict[str, Any] = {"text": text, "logprobs": logprobs, "finish_reason": None}
        if self._token_ids:
            if not self._begun:
                choice["prompt_token_ids"] = self._choice.request.prompt.tolist()
            choice["token_ids"] = self._choice.reply.ids[self._sent_ids : ids_to].tolist()
            self._begun, self._sent_ids = True, max(self._sent_ids, ids_to)
        return _ChoiceEvent(after, choice)
