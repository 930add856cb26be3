"""The output items that the parts of a reply become, and the events of each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from llmirage_server.openai.responses.hosted import Event, OutputItem
from llmirage_server.replies.reply import Part, Reply
from llmirage_server.service.simulated_tools import sealed
from llmirage_server.state.items import Item, new_item_id
from llmirage_shared.wire import schema
from llmirage_shared.wire.output import new_call_id

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
        super().__init__(part, new_item_id("compaction"))
        self._text = text

    def opening(self) -> Item:
        return {"id": self.id, "type": "compaction", "encrypted_content": ""}

    def finished(self, logprobs: Sequence[Item]) -> Item:
        return {**self.opening(), "encrypted_content": sealed(self._text)}

    def ended(self, logprobs: Sequence[Item]) -> Iterator[Event]:
        yield from ()


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
