"""A served request as traces know it, taken when its generation ends, and its place in its session."""

from __future__ import annotations

import itertools
import math
import os
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np

from llmirage_server.cluster.request import Request
from llmirage_server.http.sessions import PARENT_HEADERS, SESSION_HEADERS, first_header, labels
from llmirage_server.replies.reply import Reply, Tool
from llmirage_server.telemetry.journal import JournalEntry, said_parts
from llmirage_shared.tokens import PrefixHashes, prefix_hashes
from llmirage_shared.wire.chat import ChatHistory
from llmirage_shared.wire.sampling import Sampling

Finish = Literal["stop", "length", "tool_calls", "content_filter", "cancelled", "error"]

_MOST_NAME = 256
_REFUSED = 400  # and more: the status of a refusal
_ANSWERED = ("/completions", "/messages", "/responses")  # paths of requests for a reply


@dataclass(slots=True, frozen=True, eq=False, kw_only=True)
class TracedRequest:
    """One sequence of a request; a request of several choices or prompts has several. Times are Unix seconds, maybe NaN.

    Times pass as the cluster's do: with --speed 10 ten seconds in one.

    id: unique among all servers. caller_id: X-Request-ID. prompt: int32 ids as bytes, the same object for all choices.
    since_s: when the first request came that was asked for a reply, though it may end after others.
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
    admitted_s: float = math.nan
    first_token_s: float = math.nan
    end_s: float
    choice: int = 0
    prompt: bytes = b""
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    finish: Finish
    since_s: float
    session: str | None
    parent: str | None
    affinity: str | None
    traceparent: str | None
    sampling: Sampling = field(default_factory=Sampling)
    max_tokens: int | None = None
    body: Mapping[str, Any] = field(default_factory=dict)
    text: str
    messages: Sequence[Mapping[str, Any]] = ()
    tools: Sequence[Tool] = ()
    reply: Reply = field(default_factory=lambda: Reply(np.empty(0, dtype=np.int32), (), "stop"))
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
    def parts(self) -> Sequence[tuple[str, str, str]]:
        """Kind, name and text of the parts of the reply, as far as generated."""
        return said_parts(self.reply, self.output_tokens)


Ended = Callable[[Sequence[Request], Sequence[Reply]], None]


class ServedRecorder:
    """Makes records of served requests, for `take`."""

    def __init__(self, take: Callable[[TracedRequest], None], now: Callable[[], float], speed: float) -> None:
        """now: the cluster's time in seconds. speed: cluster seconds in a second."""
        self.take = take
        self._now = now
        self._speed = speed
        self._origin_s: float | None = None
        self.since_s = math.inf  # cluster's time when the first request came
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
    ) -> Ended:
        """Take in a request whose replies are planned. texts: of the prompts, where there are no messages.

        Return what takes the records of its sequences. These are prompt-major; the cluster has finished, cancelled or lost
        each.
        """
        self.since_s = min(self.since_s, self._now())

        def ended(requests: Sequence[Request], replies: Sequence[Reply]) -> None:
            now_s, origin_s = self.clock()
            prompt = b""
            for number, (request, reply) in enumerate(zip(requests, replies, strict=True)):
                if not number % sampling.n:
                    prompt = request.prompt.tobytes()
                end_s = request.finished_s if request.produced >= request.output_tokens else now_s
                text = "" if history.messages else texts[number // sampling.n]
                self.take(
                    TracedRequest(
                        **self.named(entry),
                        model=entry.served,
                        asked_model=entry.model or entry.served,
                        instance=request.instance,
                        arrival_s=origin_s + (now_s if math.isnan(request.arrival_s) else request.arrival_s),
                        admitted_s=origin_s + request.admitted_s,
                        first_token_s=origin_s + request.first_token_s,
                        end_s=origin_s + (now_s if math.isnan(end_s) else end_s),
                        choice=number % sampling.n,
                        prompt=prompt,
                        prompt_tokens=request.prompt_tokens,
                        output_tokens=request.produced,
                        cached_tokens=request.cached_tokens,
                        finish=_finish(request, reply),
                        since_s=origin_s + self.since_s,
                        sampling=sampling,
                        max_tokens=sampling.max_tokens,
                        body=body,
                        text=text,
                        messages=history.messages,
                        tools=tools,
                        reply=reply,
                    )
                )

        return ended

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
                **self.named(entry),
                model=entry.served or entry.model or "unknown",
                asked_model=entry.model or entry.served or "unknown",
                instance=-1,
                arrival_s=end_s - lasted_s,
                end_s=end_s,
                finish="error",
                since_s=origin_s + min(self.since_s, now_s),
                text=entry.user,
                refusal=(status, entry.error),
            )
        )

    def named(self, entry: JournalEntry) -> dict[str, Any]:
        """Return the fields of a TracedRequest that name it: a new id, and what its headers tell."""
        header = entry.header
        return {
            "id": f"{self._run}-{next(self._numbers)}",
            "caller_id": (header(b"x-request-id") or b"").decode("latin-1")[:_MOST_NAME],
            "path": entry.path,
            "session": first_header(header, SESSION_HEADERS),
            "parent": first_header(header, PARENT_HEADERS),
            "affinity": first_header(header, (b"x-session-affinity",)),
            "traceparent": (header(b"traceparent") or b"").decode("latin-1") or None,
            "labels": labels(header),
        }


def _finish(request: Request, reply: Reply) -> Finish:
    if request.produced >= request.output_tokens:
        return reply.finish_reason
    return "error" if request.failed else "cancelled"


MOST_SESSIONS = 20_000  # that are remembered; the one unused for longest is forgotten
_MOST_RECENT = 64  # requests of a session


class Earlier(NamedTuple):
    """A request that had ended."""

    id: str
    start_s: float
    end_s: float


@dataclass(slots=True, eq=False)
class TracedSession:
    """parent: the session that started it. root: the first of its tree. joined: no request waits for its last one."""

    name: str
    parent: TracedSession | None = None
    recent: list[Earlier] = field(default_factory=list)
    children: dict[str, TracedSession] = field(default_factory=dict)
    joined: bool = False
    begun_s: float = 0.0

    @property
    def root(self) -> TracedSession:
        return self if self.parent is None else self.parent.root

    def last_before(self, time_s: float) -> Earlier | None:
        """Return the request that was the last to end by then."""
        return max((one for one in self.recent if one.end_s <= time_s), key=lambda one: one.end_s, default=None)


@dataclass(slots=True, frozen=True)
class PlacedRequest:
    """A request in its session. hashes: of the prompt, see `prefix_hashes`.

    previous: the request that it follows. spawned_by: of the first of a session, the parent's request that it follows.
    joins: sessions that it started which had all ended, with the last request of each.
    """

    served: TracedRequest
    session: TracedSession
    hashes: PrefixHashes
    previous: Earlier | None
    spawned_by: Earlier | None
    joins: tuple[tuple[TracedSession, Earlier], ...]

    def blocks(self, block_tokens: int, cut: bool = False) -> list[int]:
        """Return the hashes of the whole blocks; cut: and of the last one, which may be shorter."""
        ends = list(range(block_tokens - 1, len(self.hashes), block_tokens))
        if cut and len(self.hashes) % block_tokens:
            ends.append(len(self.hashes) - 1)
        found: list[int] = self.hashes[ends].tolist()
        return found


class Sessions:
    """Places requests in the order in which they end.

    Without a header that names it, a request belongs to the session of the last one whose prompt it continues.
    """

    def __init__(self) -> None:
        self._sessions: OrderedDict[str, TracedSession] = OrderedDict()
        self._continued: OrderedDict[int, tuple[int, str]] = OrderedDict()  # by hash of a prompt: its length, its session
        self._lengths: Counter[int] = Counter()  # of these prompts

    def place(self, served: TracedRequest) -> PlacedRequest:
        hashes = prefix_hashes(np.frombuffer(served.prompt, np.int32))
        name = served.session or self._found(hashes, served) or f"session-{served.id}"
        session = self._session(name, served)
        previous = session.last_before(served.arrival_s)
        spawned_by = None
        if not session.recent and session.parent is not None:
            spawned_by = session.parent.last_before(served.arrival_s)
        joins = []
        for child in session.children.values():
            if child.joined or not child.recent or max(one.end_s for one in child.recent) > served.arrival_s:
                continue
            last = child.last_before(served.arrival_s)
            assert last is not None
            child.joined = True
            joins.append((child, last))
        session.joined = False
        session.begun_s = min(session.begun_s, served.arrival_s) if session.recent else served.arrival_s
        session.recent = [*session.recent[1 - _MOST_RECENT :], Earlier(served.id, served.arrival_s, served.end_s)]
        if served.session is None and len(hashes):
            self._remember(int(hashes[-1]), len(hashes), name)
        return PlacedRequest(served, session, hashes, previous, spawned_by, tuple(joins))

    def _remember(self, prompt: int, tokens: int, name: str) -> None:
        """Note the session of a prompt, by its hash."""
        if prompt not in self._continued:
            self._lengths[tokens] += 1
        self._continued[prompt] = tokens, name
        if len(self._continued) > MOST_SESSIONS:
            length, _ = self._continued.popitem(last=False)[1]
            self._lengths[length] -= 1
            if not self._lengths[length]:
                del self._lengths[length]

    def _found(self, hashes: PrefixHashes, served: TracedRequest) -> str | None:
        """Return the session whose longest prompt so far this one begins with, if that request had ended."""
        lengths = sorted([length for length in self._lengths if length < len(hashes)], reverse=True)
        for known in hashes[np.array(lengths, dtype=np.int64) - 1].tolist() if lengths else ():
            if (found := self._continued.get(known)) is None:
                continue
            session = self._sessions.get(found[1])
            if session is not None and session.last_before(served.arrival_s) is not None:
                return found[1]
        return None

    def _session(self, name: str, served: TracedRequest) -> TracedSession:
        if (known := self._sessions.get(name)) is not None:
            self._sessions.move_to_end(name)
            return known
        asked = served.parent or (served.affinity if served.affinity != name else None)
        parent = self._sessions.get(asked) if asked else None
        session = self._sessions[name] = TracedSession(name, parent)
        if parent is not None:
            parent.children[name] = session
        while len(self._sessions) > MOST_SESSIONS:
            _, forgotten = self._sessions.popitem(last=False)
            if forgotten.parent is not None:
                forgotten.parent.children.pop(forgotten.name, None)
        return session
