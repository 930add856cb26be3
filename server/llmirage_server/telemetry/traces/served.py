"""A served request as traces know it, taken when its generation ends; nothing is done for a token."""

from __future__ import annotations

import itertools
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from llmirage_server.cluster.request import Request
from llmirage_server.http.sessions import PARENT_HEADERS, SESSION_HEADERS, first_header, labels
from llmirage_server.replies.reply import Reply, Tool
from llmirage_server.telemetry.journal import JournalEntry
from llmirage_shared.wire.chat import ChatHistory
from llmirage_shared.wire.sampling import Sampling

Finish = Literal["stop", "length", "tool_calls", "content_filter", "cancelled", "error"]

_AFFINITY = b"x-session-affinity"
_MOST_NAME = 256
_REFUSED = 400  # and more: the status of a refusal
_ANSWERED = ("/completions", "/messages", "/responses")  # paths of requests for a reply
_NOTHING_ASKED = Sampling()
_NOTHING_SAID = Reply(np.empty(0, dtype=np.int32), (), "stop")


@dataclass(slots=True, frozen=True, eq=False)
class TracedRequest:
    """One sequence of a request; a request of several choices or prompts has several. Times are Unix seconds, maybe NaN.

    Times pass as the cluster's do: with --speed 10 ten seconds in one.

    id: unique among all servers. caller_id: X-Request-ID. prompt: int32 ids as bytes, the same object for all choices.
    session, parent: as the request's headers name them. affinity: X-Session-Affinity.
    finish: cancelled where the client left, error where the instance was lost or the request was refused.
    refusal: status and message of a request that was refused, which has no tokens; None for others.
    body: the JSON object of the request. messages: in chat's form; without any the prompt is a text, which is `text`.
    reply: its first `output_tokens` tokens were generated. labels: tenant and service class, as headers name them.
    """

    id: str
    caller_id: str
    path: str
    model: str
    asked_model: str
    instance: int
    arrival_s: float
    admitted_s: float
    first_token_s: float
    end_s: float
    choice: int
    prompt: bytes
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    finish: Finish
    session: str | None
    parent: str | None
    affinity: str | None
    traceparent: str | None
    sampling: Sampling
    max_tokens: int | None
    body: Mapping[str, Any]
    text: str
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Tool]
    reply: Reply
    labels: Mapping[str, str] = field(default_factory=dict)
    refusal: tuple[int, str] | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of memory that it holds, about: with the first choice a prompt's ids, and its messages with as many."""
        return 2_000 + 100 * self.output_tokens + (0 if self.choice else 2 * len(self.prompt))

    @property
    def said(self) -> str:
        """The text of the reply, as far as generated."""
        return "".join([text for kind, _, text in self.parts if kind in ("text", "refusal")])

    @property
    def thought(self) -> str:
        return "".join([text for kind, _, text in self.parts if kind == "reasoning"])

    @property
    def calls(self) -> list[tuple[str, str, str]]:
        """Id, name and arguments of the tool calls that were generated to their end."""
        found = [(name, text) for kind, name, text in self.parts if kind.endswith("_call")]
        return [(f"call_{self.id}_{number}", name, text) for number, (name, text) in enumerate(found)]

    @property
    def parts(self) -> list[tuple[str, str, str]]:
        """Kind, name and text of the parts of the reply, as far as generated."""
        pieces, produced = self.reply.pieces, self.output_tokens
        return [
            (part.kind, part.name, "".join(pieces[part.start : min(part.end, produced)]))
            for part in self.reply.all_parts
            if part.start < produced
        ]


class RequestTrace:
    """The trace of one API request: `ended` makes a TracedRequest of each of its sequences."""

    __slots__ = ("_asked", "_entry", "_recorder")

    def __init__(self, recorder: ServedRecorder, entry: JournalEntry, *asked: Any) -> None:
        """asked: see `ServedRecorder.begun`."""
        self._recorder, self._entry, self._asked = recorder, entry, asked

    def ended(self, requests: Sequence[Request], replies: Sequence[Reply]) -> None:
        """Take the record. requests: prompt-major; the cluster has finished, cancelled or lost each."""
        entry, recorder = self._entry, self._recorder
        body, texts, sampling, history, tools = self._asked
        now_s, origin_s = recorder.clock()
        affinity = first_header(entry.header, (_AFFINITY,))
        prompt = b""
        for number, (request, reply) in enumerate(zip(requests, replies, strict=True)):
            if not number % sampling.n:
                prompt = request.prompt.tobytes()
            end_s = request.finished_s if request.produced >= request.output_tokens else now_s
            text = "" if history.messages else texts[number // sampling.n]
            recorder.take(
                TracedRequest(
                    recorder.new_id(),
                    (entry.header(b"x-request-id") or b"").decode("latin-1")[:_MOST_NAME],
                    entry.path,
                    entry.served,
                    entry.model or entry.served,
                    request.instance,
                    origin_s + (now_s if math.isnan(request.arrival_s) else request.arrival_s),
                    origin_s + request.admitted_s,
                    origin_s + request.first_token_s,
                    origin_s + (now_s if math.isnan(end_s) else end_s),
                    number % sampling.n,
                    prompt,
                    request.prompt_tokens,
                    request.produced,
                    request.cached_tokens,
                    _finish(request, reply),
                    first_header(entry.header, SESSION_HEADERS),
                    first_header(entry.header, PARENT_HEADERS),
                    affinity,
                    (entry.header(b"traceparent") or b"").decode("latin-1") or None,
                    sampling,
                    sampling.max_tokens,
                    body,
                    text,
                    history.messages,
                    tools,
                    reply,
                    labels(entry.header),
                )
            )


class ServedRecorder:
    """Makes records of served requests, for `take`."""

    def __init__(self, take: Callable[[TracedRequest], None], now: Callable[[], float], speed: float) -> None:
        """now: the cluster's time in seconds. speed: cluster seconds in a second."""
        self.take = take
        self._now = now
        self._speed = speed
        self._origin_s: float | None = None
        self._run = os.urandom(4).hex()
        self._numbers = itertools.count(1)

    def begun(
        self,
        entry: JournalEntry,
        body: Mapping[str, Any],
        texts: Sequence[str],
        sampling: Sampling,
        history: ChatHistory,
        tools: Sequence[Tool],
    ) -> RequestTrace:
        """Return the trace of a request whose replies are planned. texts: of the prompts, where there are no messages."""
        return RequestTrace(self, entry, body, texts, sampling, history, tools)

    def clock(self) -> tuple[float, float]:
        """Return the cluster's time, and the Unix time of its zero."""
        now_s = self._now()
        if self._origin_s is None:
            self._origin_s = time.time() - now_s / self._speed
        return now_s, self._origin_s

    def refused(self, entry: JournalEntry) -> None:
        """Take the record of a response that has ended, if it refused a request for a reply."""
        status = entry.status or 0
        if status < _REFUSED or entry.said is not None or entry.prompt_tokens or not entry.path.endswith(_ANSWERED):
            return
        now_s, origin_s = self.clock()
        lasted_s = (entry.elapsed_s or 0.0) * (self._speed if self._speed < math.inf else 0.0)
        end_s = origin_s + now_s
        self.take(
            TracedRequest(
                id=self.new_id(),
                caller_id=(entry.header(b"x-request-id") or b"").decode("latin-1")[:_MOST_NAME],
                path=entry.path,
                model=entry.served or entry.model or "unknown",
                asked_model=entry.model or entry.served or "unknown",
                instance=-1,
                arrival_s=end_s - lasted_s,
                admitted_s=math.nan,
                first_token_s=math.nan,
                end_s=end_s,
                choice=0,
                prompt=b"",
                prompt_tokens=0,
                output_tokens=0,
                cached_tokens=0,
                finish="error",
                session=first_header(entry.header, SESSION_HEADERS),
                parent=first_header(entry.header, PARENT_HEADERS),
                affinity=first_header(entry.header, (_AFFINITY,)),
                traceparent=(entry.header(b"traceparent") or b"").decode("latin-1") or None,
                sampling=_NOTHING_ASKED,
                max_tokens=None,
                body={},
                text=entry.user,
                messages=(),
                tools=(),
                reply=_NOTHING_SAID,
                labels=labels(entry.header),
                refusal=(status, entry.error),
            )
        )

    def new_id(self) -> str:
        return f"{self._run}-{next(self._numbers)}"


def _finish(request: Request, reply: Reply) -> Finish:
    if request.produced >= request.output_tokens:
        return reply.finish_reason
    return "error" if request.failed else "cancelled"
