"""The response object with every setting, the output items that parts of a reply become, and the events of a stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from llmirage_server.openai.responses.hosted import Event, HostedCall, OutputItem
from llmirage_server.replies.reply import Part, Reply
from llmirage_server.service.constraints import plain
from llmirage_server.service.generation import Choice, said_together
from llmirage_server.service.logprobs import ReplyLogprobs
from llmirage_server.service.simulated_tools import sealed
from llmirage_server.state.conversation import Item, new_item_id
from llmirage_shared.wire import schema
from llmirage_shared.wire.output import after_delta, delta_padded, encoded, escape, named_event, new_call_id


def new_response(
    response_id: str, created_at: int, request: schema.responses.ResponseRequest, model: str, conversation: str | None
) -> Item:
    """Return the object of a response that has not begun. It has the keys of OpenAI's and of the Open Responses document."""
    reasoning, text, instructions = request.reasoning, request.text, request.instructions
    caching = request.prompt_cache_options
    return {
        "id": response_id,
        "object": "response",
        "created_at": created_at,
        "completed_at": None,
        "status": "queued" if request.background else "in_progress",
        "background": bool(request.background),
        "billing": {"payer": "developer"},
        "error": None,
        "frequency_penalty": request.frequency_penalty or 0.0,
        "incomplete_details": None,
        "instructions": [item.plain() for item in instructions] if isinstance(instructions, list) else instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        **({} if request.moderation is None else {"moderation": None}),
        "model": model,
        "output": [],
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "presence_penalty": request.presence_penalty or 0.0,
        "previous_response_id": request.previous_response_id,
        **({} if request.prompt is None else {"prompt": request.prompt.plain()}),
        "prompt_cache_key": request.prompt_cache_key,
        "prompt_cache_retention": request.prompt_cache_retention,
        **({} if caching is None else {"prompt_cache_options": {"mode": caching.mode or "implicit", "ttl": "30m"}}),
        "reasoning": {
            "effort": reasoning.effort if reasoning else None,
            "summary": (reasoning.summary or reasoning.generate_summary) if reasoning else None,
        },
        "safety_identifier": request.safety_identifier,
        "service_tier": "default" if request.service_tier in (None, "auto") else request.service_tier,
        "store": request.store is not False,
        "temperature": 1.0 if request.temperature is None else request.temperature,
        "text": {"format": _format(text), "verbosity": (text.verbosity if text else None) or "medium"},
        "tool_choice": plain(request.tool_choice) or "auto",
        "tools": [_tool(tool) for tool in request.plain_tools],
        "top_logprobs": request.top_logprobs or 0,
        "top_p": 1.0 if request.top_p is None else request.top_p,
        "truncation": request.truncation or "disabled",
        "usage": None,
        "user": request.user or "",  # null is valid for Open Responses only, a string for OpenAI's document, too
        "metadata": request.metadata or {},
        **({} if conversation is None else {"conversation": {"id": conversation}}),
    }


def _format(text: schema.responses.TextOptions | None) -> dict[str, Any]:
    if text is None or text.format is None:
        return {"type": "text"}
    form = text.format.plain()
    if form["type"] == "json_schema":
        form = {"strict": False, **{key: value for key, value in form.items() if value is not None}}
    return form


def _tool(tool: Item) -> Item:
    """Return a tool as the response repeats it: function tools with all of their fields."""
    if tool.get("type") == "function":
        return {"description": None, "parameters": {}, **tool, "strict": tool.get("strict") is not False}
    if tool.get("type") == "custom":
        return {"format": {"type": "text"}, **tool}
    return tool


def response_usage(usage: Item) -> Item:
    """Chat's usage object in the form of the Responses API."""
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": usage["prompt_tokens_details"]["cached_tokens"], "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": usage["completion_tokens_details"]["reasoning_tokens"]},
        "total_tokens": usage["total_tokens"],
    }


_ENCRYPTED = "reasoning.encrypted_content"


def output_item(part: Part, reply: Reply, request: schema.responses.ResponseRequest, cut: bool) -> OutputItem:
    """Return the item of a part that is no call of one of the API's own tools. cut: the reply ended inside this part."""
    if request.compacts:
        return CompactionOutput(part, reply.text)
    text, status = reply.said(part), "incomplete" if cut else "completed"
    if part.kind in ("text", "refusal"):
        return MessageOutput(part, text, status)
    if part.kind != "reasoning":
        return CallOutput(part, text, status)
    reasoning = request.reasoning
    summarised = reasoning is not None and bool(reasoning.summary or reasoning.generate_summary)
    return ReasoningOutput(part, text, summarised, _ENCRYPTED in (request.include or ()))


class MessageOutput(OutputItem):
    """Text, or a refusal. annotations: what the text cites."""

    def __init__(self, part: Part, text: str, status: str) -> None:
        super().__init__(part, new_item_id("message"))
        self.text = text
        self.annotations: list[Item] = []
        self.has_logprobs = part.kind == "text"
        self.delta = "output_text" if part.kind == "text" else "refusal"
        self.inner = {"content_index": 0}
        self._status = status

    def opening(self) -> Item:
        return {"id": self.id, "type": "message", "status": "in_progress", "content": [], "role": "assistant"}

    def finished(self, logprobs: Sequence[Item]) -> Item:
        content = [self._content(self.text, logprobs, self.annotations)]
        return {"id": self.id, "type": "message", "status": self._status, "content": content, "role": "assistant"}

    def begun(self) -> Iterator[Event]:
        yield "content_part.added", {"part": self._content("", [], [])}

    def ended(self, logprobs: Sequence[Item]) -> Iterator[Event]:
        for number, annotation in enumerate(self.annotations):
            yield "output_text.annotation.added", {"annotation_index": number, "annotation": annotation}
        yield (
            f"{self.delta}.done",
            {"text": self.text, "logprobs": logprobs} if self.has_logprobs else {"refusal": self.text},
        )
        yield "content_part.done", {"part": self._content(self.text, logprobs, self.annotations)}

    def _content(self, text: str, logprobs: Sequence[Item], annotations: list[Item]) -> Item:
        if not self.has_logprobs:
            return {"type": "refusal", "refusal": text}
        return {"type": "output_text", "annotations": annotations, "logprobs": logprobs, "text": text}


class CompactionOutput(OutputItem):
    """The conversation so far, as one item that only this server can read. Its text is not streamed."""

    def __init__(self, part: Part, text: str) -> None:
        """part: empty where no token generates it."""
        super().__init__(part, new_item_id("compaction"))
        self._text = text

    def opening(self) -> Item:
        return {"id": self.id, "type": "compaction", "encrypted_content": ""}

    def finished(self, logprobs: Sequence[Item]) -> Item:
        return {**self.opening(), "encrypted_content": sealed(self._text)}


class ReasoningOutput(OutputItem):
    """Thoughts, as a summary or as they are."""

    def __init__(self, part: Part, text: str, summarised: bool, encrypted: bool) -> None:
        super().__init__(part, new_item_id("reasoning"))
        self.delta = "reasoning_summary_text" if summarised else "reasoning_text"
        self.inner = {"summary_index" if summarised else "content_index": 0}
        self._text = text
        self._summarised = summarised
        self._encrypted = encrypted

    def opening(self) -> Item:
        return {"id": self.id, "type": "reasoning", "summary": []}

    def finished(self, logprobs: Sequence[Item]) -> Item:
        item = self.opening()
        if self._summarised:
            item["summary"] = [{"type": "summary_text", "text": self._text}]
        else:
            item["content"] = [{"type": "reasoning_text", "text": self._text}]
        if self._encrypted:
            item["encrypted_content"] = sealed(self._text)
        return item

    def begun(self) -> Iterator[Event]:
        if self._summarised:
            yield "reasoning_summary_part.added", {"part": {"type": "summary_text", "text": ""}}

    def ended(self, logprobs: Sequence[Item]) -> Iterator[Event]:
        yield f"{self.delta}.done", {"text": self._text}
        if self._summarised:
            yield "reasoning_summary_part.done", {"part": {"type": "summary_text", "text": self._text}}


class CallOutput(OutputItem):
    """A call of a function or a custom tool."""

    def __init__(self, part: Part, text: str, status: str) -> None:
        function = part.kind == "function_call"
        self._type, self._field = ("function_call", "arguments") if function else ("custom_tool_call", "input")
        super().__init__(part, new_item_id(self._type))
        self.delta = f"{self._type}_{self._field}"
        self._text = text
        self._status = status
        self._call_id = new_call_id()

    def opening(self) -> Item:
        return self._item("in_progress", "")

    def finished(self, logprobs: Sequence[Item]) -> Item:
        return self._item(self._status, self._text)

    def ended(self, logprobs: Sequence[Item]) -> Iterator[Event]:
        name = {"name": self.part.name} if self._type == "function_call" else {}
        yield f"{self.delta}.done", {**name, self._field: self._text}

    def _item(self, status: str, text: str) -> Item:
        return {
            "id": self.id,
            "type": self._type,
            "status": status,
            self._field: text,
            "call_id": self._call_id,
            "name": self.part.name,
        }


class ResponseWriter:
    """A ChoiceWriter of events. `output` grows by each item that is finished."""

    def __init__(
        self,
        choice: Choice,
        request: schema.responses.ResponseRequest,
        response: Item,
        logprobs: ReplyLogprobs | None,
        first: Sequence[OutputItem] = (),
        context: Sequence[Item] = (),
        obfuscated: bool = False,
    ) -> None:
        """Begin. first: the items that no token generates. context: the items of the prompt.

        obfuscated: deltas are padded.
        """
        reply = choice.reply
        self.response = response
        self.sequence = 0  # of the next event
        self._pieces = reply.pieces
        self._joined = choice.joined
        self._logprobs = logprobs
        self._obfuscated = obfuscated
        parts = (Part("text", 0, len(reply.ids)),) if request.compacts else reply.all_parts
        cut = reply.finish_reason == "length"
        self.items: list[OutputItem] = [*first]
        for part in parts:
            ends = cut and part is parts[-1]
            if part.kind in ("hosted_call", "client_call"):
                self.items.append(HostedCall(part, reply.said(part), ends, request, context))
            else:
                self.items.append(output_item(part, reply, request, ends))
        _annotate(self.items)
        self._index = -1  # index of the open item
        self._next = 0  # index of the next token's item, or of the item after it
        self._sent_logprobs: list[Item] = []  # log probabilities of the open item
        self._delta: tuple[bytes, bytes, bytes] | None = None

    def opening(self) -> bytes:
        """Return the events before any token."""
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
        for places in said_together([item.part for item in self.items] if self._joined else (), start, end, self._joined):
            while self._next < len(self.items) and places.start >= self.items[self._next].part.end:
                written.append(self._close_up_to(self._next))
                self._next += 1
            if self._next == len(self.items) or places.start < self.items[self._next].part.start:
                continue
            if self._index < self._next:
                written.append(self._open(self._next))
            if piece := "".join(self._pieces[places.start : places.stop]):
                written.append(self._say(piece, places))
        return b"".join(written)

    def ending(self) -> bytes:
        written = []
        while self._next < len(self.items):
            written.append(self._close_up_to(self._next))
            self._next += 1
        return b"".join(written)

    def event(self, kind: str, **fields: Any) -> bytes:
        data = named_event(kind, {"type": kind, "sequence_number": self.sequence, **fields})
        self.sequence += 1
        return delta_padded(data, fields["delta"]) if self._obfuscated and "delta" in fields else data

    def finished_items(self) -> list[Item]:
        """All output items as they are when the reply is complete."""
        return [item.finished(self._all_logprobs(item)) for item in self.items]

    def _all_logprobs(self, item: OutputItem) -> Sequence[Item]:
        if self._logprobs is None or not item.has_logprobs:
            return []
        return self._logprobs.entries(range(item.part.start, item.part.end))

    def _open(self, index: int) -> bytes:
        item = self.items[index]
        self._index = index
        self._sent_logprobs = []
        self._delta = self._delta_frame(item, index) if item.delta else None
        return self.event("response.output_item.added", output_index=index, item=item.opening()) + self._events(item.begun())

    def _delta_frame(self, item: OutputItem, index: int) -> tuple[bytes, bytes, bytes]:
        kind = f"response.{item.delta}.delta".encode()
        place = {"item_id": item.id, "output_index": index, **item.inner}
        head = b"event: " + kind + b'\ndata: {"type":"' + kind + b'","sequence_number":'
        return head, b"," + encoded(place)[1:-1] + b',"delta":', b',"logprobs":' if item.has_logprobs else b""

    def _say(self, piece: str, places: range) -> bytes:
        if self._delta is None:  # arguments of a hosted tool are not streamed
            return b""
        head, middle, logprobs = self._delta
        data = head + str(self.sequence).encode() + middle + escape(piece)
        self.sequence += 1
        if logprobs:
            known = self._logprobs
            entries = [] if known is None else [known.entry(place) for place in places if self._pieces[place]]
            self._sent_logprobs += entries
            data += logprobs + (encoded(entries) if entries else b"[]")
        return data + (after_delta(piece) if self._obfuscated else b"}\n\n")

    def _close_up_to(self, index: int) -> bytes:
        """End item `index`. An item without visible tokens is opened first."""
        opened = self._open(index) if self._index < index else b""
        item, logprobs = self.items[index], self._sent_logprobs
        ended = self._events(item.ended(logprobs))
        return opened + ended + self.event("response.output_item.done", output_index=index, item=item.finished(logprobs))

    def _events(self, events: Iterable[Event]) -> bytes:
        """Return the events of the open item."""
        place = {"item_id": self.items[self._index].id, "output_index": self._index, **self.items[self._index].inner}
        return b"".join([self.event(f"response.{kind}", **place, **fields) for kind, fields in events])


def _annotate(items: Sequence[OutputItem]) -> None:
    """Add citations to a message that follows a search."""
    calls: list[HostedCall] = []
    for item in items:
        if isinstance(item, HostedCall):
            calls.append(item)
        elif isinstance(item, MessageOutput) and item.part.kind == "text" and item.text:
            item.annotations = [cited for call in calls if (cited := call.annotation(item.text)) is not None]
            calls = []
