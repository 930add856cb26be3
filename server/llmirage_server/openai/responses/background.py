"""Responses that continue without a connection, and their streams for later clients."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

from llmirage_server.cluster.request import Request
from llmirage_server.http.event_stream import STREAM_HEADERS, EventStream, Shutdown
from llmirage_server.http.exchange import LARGE_BYTES, LOGPROB_BYTES, HttpExchange
from llmirage_server.openai.responses.hosted import STAGES
from llmirage_server.openai.responses.writer import ResponseWriter
from llmirage_server.service.generation import Generation, chunks_due
from llmirage_server.state.conversation import Item
from llmirage_server.state.state import State
from llmirage_shared.wire import errors
from llmirage_shared.wire.errors import ApiError
from llmirage_shared.wire.output import delta_padded, named_event, without_padding

logger = logging.getLogger("llmirage")

_INTERRUPTED = {"code": "server_error", "message": "The server stopped before the response was complete."}
_LAST_EVENTS = {"cancelled": "incomplete"}  # the API has no event for a response that was cancelled
_HOSTED = (*STAGES, "mcp_list_tools", "mcp_call")  # items of the API's own tools whose progress has events
_WRITTEN = {"function_call": "arguments", "custom_tool_call": "input"}  # the field that the model writes, by type
_DELTA_BYTES = 320  # of a token's event, beside its text
_TIMES_SAID = 12  # six times, and escaped: in its deltas, at the end of its text, part and item, and of the response
_WORDS = re.compile(r"\s*\S+\s*$|\s*\S+")


class BackgroundRun:
    """One response in progress, with its events for any number of followers. When it has ended, the state keeps them.

    expected_bytes: an upper bound of the bytes of its events.
    """

    def __init__(
        self,
        generation: Generation,
        writer: ResponseWriter,
        finished: Callable[[], Item],
        store: Callable[[], None],
        state: State,
    ) -> None:
        """finished: completes and stores the response; store: stores it as it is. Both may raise ApiError."""
        self.events: list[bytes] = []
        self.expected_bytes = 0
        self.over = False
        self.ended: Callable[[], Any] = lambda: None
        self._generation = generation
        self._writer = writer
        self._finished = finished
        self._store = store
        self._state = state
        self._sent = 0
        self._more = asyncio.Event()
        self._add(writer.opening())

    @property
    def response(self) -> Item:
        return self._writer.response

    def bytes_kept(self) -> int:
        return sum(map(len, self.events))

    def bytes_expected(self, logprobs: int) -> int:
        """Return an upper bound of the bytes of all events. logprobs: of the reply. Call it before `start`."""
        [choice] = self._generation.choices
        said = _TIMES_SAID * sum([len(piece.encode()) for piece in choice.reply.pieces])
        return 2 * self.bytes_kept() + said + _DELTA_BYTES * len(choice.reply.ids) + _TIMES_SAID * logprobs * LOGPROB_BYTES

    def keep(self) -> None:
        """Store the response, in progress, and that it runs. Call it before `start`, of a large one in a thread."""
        self.response["status"] = "in_progress"
        with self._state.together():
            self._store()
            self._state.put("running", self.response["id"], {})

    def start(self) -> None:
        """Begin. Raises ApiError if no instance takes it; the response has failed then."""
        [choice] = self._generation.choices
        choice.request.tag = self
        try:
            self._generation.start()
        except ApiError as error:
            self.abort(error)
            raise
        self._generation.responses.open.add(self)

    def tokens_due(self, request: Request) -> None:
        if self.over:
            return
        if request.failed:
            asyncio.get_running_loop().call_soon(self.abort, errors.lost(request.dropped))
            return
        data, self._sent = chunks_due(self._writer, request, self._sent)
        if request.produced < request.output_tokens:
            self._add(data)
            return
        self._add(data + self._writer.ending())
        try:
            response = self._finished()
        except ApiError as error:
            self.abort(error)
        else:
            self._end(self._writer.event(f"response.{response['status']}", response=response))

    def cancel(self) -> None:
        """Stop. A run that has ended stays as it is."""
        if not self.over:
            self._stop("cancelled", None)

    def abort(self, error: ApiError) -> None:
        if not self.over:
            self._stop("failed", error_of(error))

    def _stop(self, status: str, error: Item | None) -> None:
        self._generation.stop()
        response = self.response
        response["status"], response["error"] = status, error
        self._end(self._writer.event(f"response.{_LAST_EVENTS.get(status, status)}", response=response), self._store)

    def _end(self, last: bytes, store: Callable[[], None] = lambda: None) -> None:
        """Send the last event. What cannot be stored stays in memory: the run does not say that it has ended."""
        self.over = True
        self._generation.stop()
        self._generation.responses.open.discard(self)
        self._add(last)
        response_id = self.response["id"]
        try:
            with self._state.together():
                store()
                self._state.put("events", response_id, {"events": [event.decode() for event in self.events]})
                self._state.delete("running", response_id)
        except ApiError as error:
            logger.error("Response %s stays in memory: %s", response_id, error.message)
        else:
            self.ended()

    def _add(self, data: bytes) -> None:
        self.events += [event + b"\n\n" for event in data.split(b"\n\n") if event]
        self._more.set()

    async def following(self, first: int) -> AsyncIterator[bytes]:
        """Yield the events from index `first` on, as they come."""
        at = max(0, first)
        while True:
            while at < len(self.events):
                yield self.events[at]
                at += 1
            if self.over:
                return
            self._more.clear()
            await self._more.wait()


def error_of(error: ApiError) -> Item:
    """Return the `error` of a response that failed."""
    return {"code": error.code or "server_error", "message": error.message}


def follow(run: BackgroundRun, exchange: HttpExchange, first: int, shutdown: Shutdown) -> EventStream:
    """Return a stream of a run's events."""
    return _streamed(run.following(first), exchange, shutdown)


async def replayed(state: State, response: Item, exchange: HttpExchange, first: int, shutdown: Shutdown) -> EventStream:
    """Stream the events of a stored response: as they were sent, if it ran in the background, else made again.

    Raises ApiError (503) without room for them.
    """
    kept = await exchange.kept(state.read("events", response["id"]))
    sent: list[bytes] = (
        _events_of(response, exchange.dialect.obfuscation) if kept is None else [event.encode() for event in kept["events"]]
    )
    if kept is None and (size := sum(map(len, sent))) > LARGE_BYTES and exchange.held is not None:
        exchange.held.take(size)  # however slowly the client reads

    async def events() -> AsyncIterator[bytes]:
        for event in sent[max(0, first) :]:
            yield event

    return _streamed(events(), exchange, shutdown)


def fail_interrupted(state: State) -> None:
    """Responses that were in progress when the server before this one stopped have failed."""
    for response_id in state.keys("running"):
        record = state.get("response", response_id)
        if record is not None and record["response"]["status"] in ("queued", "in_progress"):
            record["response"] |= {"status": "failed", "error": _INTERRUPTED}
            state.put("response", response_id, record)
        state.delete("running", response_id)


def _streamed(events: AsyncIterator[bytes], exchange: HttpExchange, shutdown: Shutdown) -> EventStream:
    if exchange.query("include_obfuscation") == "false":
        events = (without_padding(event) async for event in events)
    return EventStream(events, [*exchange.response_headers(b"text/event-stream; charset=utf-8"), *STREAM_HEADERS], shutdown)


def _events_of(response: Item, obfuscated: bool) -> list[bytes]:
    events: list[bytes] = []

    def add(kind: str, **fields: Any) -> None:
        event = named_event(kind, {"type": kind, "sequence_number": len(events), **fields})
        events.append(delta_padded(event, fields["delta"]) if obfuscated and "delta" in fields else event)

    begun = {**response, "status": "in_progress", "output": [], "usage": None, "completed_at": None}
    add("response.created", response=begun)
    add("response.in_progress", response=begun)
    for index, item in enumerate(response["output"]):
        _item_events(add, index, item)
    if response["status"] not in ("queued", "in_progress"):
        add(f"response.{_LAST_EVENTS.get(response['status'], response['status'])}", response=response)
    return events


def _content_events(add: Callable[..., None], at: Item, part: Item) -> None:
    if part["type"] == "refusal":
        add("response.content_part.added", **at, part={**part, "refusal": ""})
        for word in _WORDS.findall(part["refusal"]):
            add("response.refusal.delta", **at, delta=word)
        add("response.refusal.done", **at, refusal=part["refusal"])
    else:
        add("response.content_part.added", **at, part={**part, "text": "", "logprobs": [], "annotations": []})
        for word in _WORDS.findall(part["text"]):
            add("response.output_text.delta", **at, delta=word, logprobs=[])
        for index, annotation in enumerate(part["annotations"]):
            add("response.output_text.annotation.added", **at, annotation_index=index, annotation=annotation)
        add("response.output_text.done", **at, text=part["text"], logprobs=part.get("logprobs", []))
    add("response.content_part.done", **at, part=part)


def _item_events(add: Callable[..., None], index: int, item: Item) -> None:
    place = {"item_id": item["id"], "output_index": index}
    kind = item["type"]
    opened = {key: value for key, value in item.items() if key != "encrypted_content"}
    if kind == "message":
        opened |= {"content": [], "status": "in_progress"}
    elif kind == "reasoning":
        opened |= {"summary": []}
        opened.pop("content", None)
    elif kind in _WRITTEN:
        opened |= {_WRITTEN[kind]: "", "status": "in_progress"}
    add("response.output_item.added", output_index=index, item=opened)
    if kind == "message":
        for inner, part in enumerate(item["content"]):
            at = {**place, "content_index": inner}
            _content_events(add, at, part)
    elif kind in _WRITTEN:
        field, name = _WRITTEN[kind], {"name": item["name"]} if kind == "function_call" else {}
        add(f"response.{kind}_{field}.delta", **place, delta=item[field])
        add(f"response.{kind}_{field}.done", **place, **name, **{field: item[field]})
    elif kind in _HOSTED:
        for stage in ("in_progress", *STAGES.get(kind, ()), "completed"):
            add(f"response.{kind}.{stage}", **place)
    add("response.output_item.done", output_index=index, item=item)
