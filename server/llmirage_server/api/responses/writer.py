"""The events of a streamed response."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmirage_server.api.generation import Choice
from llmirage_server.api.logprobs import ReplyLogprobs
from llmirage_server.api.responses.hosted import HostedCall, ListedTools
from llmirage_server.api.responses.items import Item
from llmirage_server.api.responses.resource import OutputItem
from llmirage_shared.wire import schema
from llmirage_shared.wire.output import encoded, escape, named_event

_DELTA = {
    "message": "response.output_text",
    "function_call": "response.function_call_arguments",
    "custom_tool_call": "response.custom_tool_call_input",
}


class ResponseWriter:
    """A ChoiceWriter of events. `output` grows by each item that is finished."""

    def __init__(
        self,
        choice: Choice,
        request: schema.responses.ResponseRequest,
        response: Item,
        logprobs: ReplyLogprobs | None,
        listed: Sequence[Item] = (),
        context: Sequence[Item] = (),
    ) -> None:
        """listed: the items that list MCP servers' tools, which come first; context: the items of the prompt."""
        reply = choice.reply
        self.response = response
        self.sequence = 0  # of the next event
        self._pieces = reply.pieces
        self._logprobs = logprobs
        parts = reply.all_parts
        cut = reply.finish_reason == "length"
        self.items: list[OutputItem | HostedCall | ListedTools] = [ListedTools(item) for item in listed]
        for part in parts:
            ends = cut and part is parts[-1]
            if part.kind in ("hosted_call", "client_call"):
                self.items.append(HostedCall(part, reply.said(part), ends, request.include or (), context))
            else:
                self.items.append(OutputItem(part, reply, request, ends))
        _annotate(self.items)
        self._index = -1  # index of the open item
        self._next = 0  # index of the next token's item, or of the item after it
        self._sent_logprobs: list[Item] = []  # log probabilities of the open item
        self._delta: tuple[bytes, bytes, bytes] | None = None

    def opening(self) -> bytes:
        """The events before any token."""
        response = {**self.response, "output": []}
        events = []
        if response["background"]:
            events.append(self.event("response.created", response={**response, "status": "queued"}))
            events.append(self.event("response.queued", response={**response, "status": "queued"}))
        else:
            events.append(self.event("response.created", response={**response, "status": "in_progress"}))
        events.append(self.event("response.in_progress", response={**response, "status": "in_progress"}))
        return b"".join(events)

    def tokens(self, start: int, end: int) -> bytes:
        written = []
        for place in range(start, end):
            while self._next < len(self.items) and place >= self.items[self._next].part.end:
                written.append(self._close_up_to(self._next))
                self._next += 1
            if self._next == len(self.items) or place < self.items[self._next].part.start:
                continue
            if self._index < self._next:
                written.append(self._open(self._next))
            if piece := self._pieces[place]:
                written.append(self._say(piece, place))
        return b"".join(written)

    def ending(self) -> bytes:
        written = []
        while self._next < len(self.items):
            written.append(self._close_up_to(self._next))
            self._next += 1
        return b"".join(written)

    def event(self, kind: str, **fields: Any) -> bytes:
        """One event, numbered."""
        data = named_event(kind, {"type": kind, "sequence_number": self.sequence, **fields})
        self.sequence += 1
        return data

    def finished_items(self) -> list[Item]:
        """All output items as they are when the reply is complete."""
        return [item.finished(self._all_logprobs(item)) for item in self.items]

    def _all_logprobs(self, item: OutputItem | HostedCall | ListedTools) -> list[Item]:
        if self._logprobs is None or item.kind != "message" or item.part.kind == "refusal":
            return []
        return [self._logprobs.entry(place) for place in range(item.part.start, item.part.end) if self._pieces[place]]

    def _open(self, index: int) -> bytes:
        item = self.items[index]
        self._index = index
        self._sent_logprobs = []
        events = [self.event("response.output_item.added", output_index=index, item=item.opening())]
        place = {"item_id": item.id, "output_index": index}
        if not isinstance(item, OutputItem):
            events += [self.event(f"response.{kind}", **place, **fields) for kind, fields in item.begun()]
            self._delta = self._delta_frame(f"response.{item.delta}.delta", place, "") if item.delta else None
            return b"".join(events)
        if item.kind == "message":
            part = item.content_part("", [], [])
            events.append(self.event("response.content_part.added", **place, content_index=0, part=part))
        elif item.kind == "reasoning" and item.summarised:
            part = {"type": "summary_text", "text": ""}
            events.append(self.event("response.reasoning_summary_part.added", **place, summary_index=0, part=part))
        more = ',"logprobs":' if item.kind == "message" and not item.refuses else ""
        self._delta = self._delta_frame(self._delta_kind(item) + ".delta", {**place, **self._inner_index(item)}, more)
        return b"".join(events)

    @staticmethod
    def _delta_frame(kind: str, place: Item, more: str) -> tuple[bytes, bytes, bytes]:
        head = b"event: " + kind.encode() + b'\ndata: {"type":"' + kind.encode() + b'","sequence_number":'
        return head, b"," + encoded(place)[1:-1] + b',"delta":', more.encode()

    def _say(self, piece: str, place: int) -> bytes:
        if self._delta is None:  # arguments of a hosted tool are not streamed
            return b""
        head, middle, logprobs = self._delta
        data = head + str(self.sequence).encode() + middle + escape(piece)
        self.sequence += 1
        if logprobs:
            entries = [] if self._logprobs is None else [self._logprobs.entry(place)]
            self._sent_logprobs += entries
            data += logprobs + (encoded(entries) if entries else b"[]")
        return data + b"}\n\n"

    def _close_up_to(self, index: int) -> bytes:
        """End item `index`. An item without visible tokens is opened first."""
        data = self._open(index) if self._index < index else b""
        item = self.items[index]
        place = {"item_id": item.id, "output_index": index}
        events = [data]
        if not isinstance(item, OutputItem):
            events += [self.event(f"response.{name}", **place, **fields) for name, fields in item.ended()]
            events.append(self.event("response.output_item.done", output_index=index, item=item.finished([])))
            return b"".join(events)
        kind = self._delta_kind(item)
        inner = self._inner_index(item)
        for number, annotation in enumerate(item.annotations):
            more = {"annotation_index": number, "annotation": annotation}
            events.append(self.event("response.output_text.annotation.added", **place, **inner, **more))
        if item.kind == "message" and item.refuses:
            events.append(self.event(f"{kind}.done", **place, **inner, refusal=item.text))
            part = item.content_part(item.text, [], [])
            events.append(self.event("response.content_part.done", **place, **inner, part=part))
        elif item.kind == "message":
            events.append(self.event(f"{kind}.done", **place, **inner, text=item.text, logprobs=self._sent_logprobs))
            part = item.content_part(item.text, self._sent_logprobs, item.annotations)
            events.append(self.event("response.content_part.done", **place, **inner, part=part))
        elif item.kind == "reasoning":
            events.append(self.event(f"{kind}.done", **place, **inner, text=item.text))
            if item.summarised:
                part = {"type": "summary_text", "text": item.text}
                events.append(self.event("response.reasoning_summary_part.done", **place, **inner, part=part))
        elif item.kind == "function_call":
            events.append(self.event(f"{kind}.done", **place, name=item.part.name, arguments=item.text))
        else:
            events.append(self.event(f"{kind}.done", **place, input=item.text))
        events.append(self.event("response.output_item.done", output_index=index, item=item.finished(self._sent_logprobs)))
        return b"".join(events)

    @staticmethod
    def _delta_kind(item: OutputItem) -> str:
        if item.kind == "reasoning":
            return "response.reasoning_summary_text" if item.summarised else "response.reasoning_text"
        return "response.refusal" if item.refuses else _DELTA[item.kind]

    @staticmethod
    def _inner_index(item: OutputItem) -> dict[str, int]:
        if item.kind == "reasoning" and item.summarised:
            return {"summary_index": 0}
        return {"content_index": 0} if item.kind in ("message", "reasoning") else {}


def _annotate(items: list[OutputItem | HostedCall | ListedTools]) -> None:
    """Add citations to a message that follows a search."""
    calls: list[HostedCall] = []
    for item in items:
        if isinstance(item, HostedCall):
            calls.append(item)
        elif isinstance(item, OutputItem) and item.part.kind == "text" and item.text:
            item.annotations = [cited for call in calls if (cited := call.annotation(item.text)) is not None]
            calls = []
