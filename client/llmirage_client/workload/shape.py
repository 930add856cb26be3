"""The shape of a workload when each of its roots runs once: distributions, arrivals, and what prefix caching can give.

The prompts are written in tokens without sending them; tokens of their own stand for live replies.
"""

from __future__ import annotations

import json
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from llmirage_client.workload.hash_blocks import block_content
from llmirage_client.workload.session import Session, SyntheticUser, TokenSpec, Turn, Workload
from llmirage_shared.media import part_tokens
from llmirage_shared.prompt_encoder import PromptEncoder
from llmirage_shared.statistics import Summary, summarize

_TOKEN_BYTES = 4


def as_segment(ids: npt.NDArray[np.int32]) -> bytes:
    """Return token ids as a segment: bytes that sort as the ids do."""
    return ids.astype(np.uint32).astype(">u4").tobytes()


def tokens_of(segment: bytes) -> int:
    """Return the number of tokens of a segment."""
    return len(segment) // _TOKEN_BYTES


class PrefixTree:
    """Prompts cut into segments at the same places: whole segments are found by hash, the one that differs by neighbours."""

    __slots__ = ("_children", "_sorted")

    def __init__(self) -> None:
        self._children: dict[bytes, PrefixTree] = {}
        self._sorted: list[bytes] = []

    def match(self, segments: Sequence[bytes]) -> int:
        """Return tokens at the beginning that some prompt put in before begins with too."""
        node, matched = self, 0
        for segment in segments:
            child = node._children.get(segment)
            if child is None:
                return matched + node._common(segment)
            matched += tokens_of(segment)
            node = child
        return matched

    def put(self, segments: Sequence[bytes]) -> None:
        node = self
        for segment in segments:
            child = node._children.get(segment)
            if child is None:
                child = node._children[segment] = PrefixTree()
                node._sorted.insert(bisect_left(node._sorted, segment), segment)
            node = child

    def _common(self, segment: bytes) -> int:
        """Return the longest prefix shared with a child, in tokens: in sorted order a neighbour has it."""
        place = bisect_left(self._sorted, segment)
        return max((_common(segment, other) for other in self._sorted[max(place - 1, 0) : place + 1]), default=0)


def _common(one: bytes, other: bytes) -> int:
    length = min(len(one), len(other))
    differ = np.frombuffer(one[:length], dtype=np.uint32) != np.frombuffer(other[:length], dtype=np.uint32)
    return int(differ.argmax()) if differ.any() else length // _TOKEN_BYTES


_FIRST_UNKNOWN = 2**31  # ids from here on are in no vocabulary
_LONGEST_REPLY = 1_000_000  # where a file allows more, no model gives them
_OUTPUT_KEYS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


@dataclass(slots=True, frozen=True)
class PromptTokens:
    """One request. segments: the prompt, cut where messages end; cached: what a server holds when it has replied.

    tokens counts the chat template's last ones too, after which the reply begins; segments do not. reply_tokens: None where
    nothing says.
    """

    segments: tuple[bytes, ...]
    cached: tuple[bytes, ...]
    tokens: int
    reply_tokens: int | None
    continued_tokens: int  # of the conversation's own last request and its reply, or its parent's


@dataclass(slots=True)
class _State:
    """A conversation under way: its history in segments, or in the token mode its last prompt and reply."""

    session: Session
    history: list[bytes] = field(default_factory=list)
    tools: bytes | None = None
    prompt: bytes = b""
    reply: bytes = b""
    continued_tokens: int = 0


class PromptWriter:
    """assumed_reply_tokens: the length of a live reply of which neither the turn nor its format says anything."""

    def __init__(self, workload: Workload, encoder: PromptEncoder, assumed_reply_tokens: int) -> None:
        self._workload = workload
        self._encoder = encoder
        self._assumed = assumed_reply_tokens
        one, two = (len(encoder.encode_chat([{"role": "user", "content": ""}] * n)) for n in (1, 2))
        self._per_message = max(two - one, 1)
        self._opening = max(one - self._per_message, 0)  # where the reply begins
        self._fresh = 0

    def __iter__(self) -> Iterator[PromptTokens]:
        """Yield every request when each root runs once; a conversation's own before its children's."""
        sessions = self._workload.sessions
        waiting = [_State(sessions[root]) for root in reversed(self._workload.roots)]
        while waiting:
            state = waiting.pop()
            children = [*state.session.pre_session_spawns, *(c for r in state.session.rounds for c in r.children)]
            started = [_State(sessions[child]) for child in children]
            for turn in state.session.turns:
                yield self._request(state, turn)
                for branch in turn.branches:
                    started += [self._child(state, sessions[name], branch.kind == "fork") for name in branch.children]
            waiting += reversed(started)

    def _child(self, parent: _State, session: Session, fork: bool) -> _State:
        if not fork:
            return _State(session)
        return _State(session, list(parent.history), parent.tools, parent.prompt, parent.reply, parent.continued_tokens)

    def _request(self, state: _State, turn: Turn) -> PromptTokens:
        continued = state.continued_tokens
        reply: int | None
        if turn.tokens is not None:
            segments, cached = self._token_turn(state, turn.tokens)
            tokens, reply = turn.tokens.input_tokens, turn.tokens.output_tokens
        else:
            segments, cached, reply = self._message_turn(state, turn)
            tokens = sum(map(tokens_of, segments)) + self._opening
        state.continued_tokens = sum(map(tokens_of, cached))
        return PromptTokens(segments, cached, tokens, reply, continued)

    def _token_turn(self, state: _State, spec: TokenSpec) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
        if spec.input_ids is not None:
            prompt = as_segment(spec.input_ids)
        else:  # it continues the last call of its session as far as the lengths allow
            whole = state.prompt + state.reply
            known = whole if tokens_of(whole) <= spec.input_tokens else state.prompt[: spec.input_tokens * 4]
            prompt = known + self._unknown(spec.input_tokens - tokens_of(known))
        reply = as_segment(spec.output_ids) if spec.output_ids is not None else self._unknown(spec.output_tokens)
        state.prompt, state.reply = prompt, reply
        return (prompt,), (prompt + reply,)

    def _message_turn(self, state: _State, turn: Turn) -> tuple[tuple[bytes, ...], tuple[bytes, ...], int | None]:
        mode = state.session.mode
        body: Mapping[str, Any] = turn.payload or turn.extra
        tools = turn.tools if turn.tools is not None else body.get("tools")
        if tools is not None:
            state.tools = self._text(json.dumps(tools, ensure_ascii=False))
        own = self._body(body) if turn.payload is not None else [self._message(message) for message in turn.messages]
        if turn.synthetic is not None:
            own.append(self._synthetic(turn.synthetic))
        history = own if mode in ("isolated", "verbatim") else [*state.history, *own]
        segments = tuple(history) if state.tools is None else (state.tools, *history)
        reply = turn.max_tokens
        if reply is None:
            reply = next((body[key] for key in _OUTPUT_KEYS if type(body.get(key)) is int), None)
        answer = self._unknown(min(self._assumed if reply is None else reply, _LONGEST_REPLY) + self._per_message)
        state.history = [*history, answer] if mode == "accumulate" else history
        return segments, (*segments, answer), reply

    def _body(self, body: Mapping[str, Any]) -> list[bytes]:
        """Return the prompt of a whole request body, as far as it is one that we know."""
        messages = body.get("messages", body.get("input"))
        if isinstance(messages, list) and all(isinstance(message, dict) for message in messages):
            return [self._message(message) for message in messages]
        prompt = body.get("prompt", messages)
        if isinstance(prompt, str):
            return [self._text(prompt)]
        if isinstance(prompt, list) and prompt and all(type(token) is int and 0 <= token < 2**31 for token in prompt):
            return [as_segment(np.array(prompt, dtype=np.int32))]
        return []

    def _message(self, message: Mapping[str, Any]) -> bytes:
        content = message.get("content")
        parts = content if isinstance(content, list) else [content]
        texts = [part if isinstance(part, str) else _part_text(part) for part in parts]
        pictures = sum(part_tokens(part) for part in parts if isinstance(part, dict) and "text" not in part)
        calls = message.get("tool_calls")
        text = "".join(texts) + (json.dumps(calls, ensure_ascii=False) if calls else "")
        marker = zlib.crc32(f"{message.get('role')}/{message.get('name')}".encode("utf-8", "replace"))
        return self._framed(marker, self._text(text) + self._unknown_of(parts, pictures))

    def _synthetic(self, message: SyntheticUser) -> bytes:
        system, user = zlib.crc32(b"system/None"), zlib.crc32(b"user/None")
        if message.block_ids is not None:
            content = as_segment(block_content(message.block_ids, message.block_tokens, message.tokens, message.key))
            head = content[: message.system_tokens * _TOKEN_BYTES]
            rest = content[len(head) :]
            framed = self._framed(system, head) if head else b""
            return framed + self._framed(user, rest) if rest or not head else framed
        prefix = np.full(message.prefix_tokens, 1, dtype=np.int32)
        own = np.random.default_rng(message.key).integers(0, 2**31 - 1, message.tokens, dtype=np.int32)
        return self._framed(user, as_segment(prefix) + as_segment(own))

    def _framed(self, marker: int, content: bytes) -> bytes:
        """Return a message with what the chat template puts around it."""
        return marker.to_bytes(4) + content + bytes(4 * (self._per_message - 1))

    def _text(self, text: str) -> bytes:
        return as_segment(self._encoder.encode(text)) if text else b""

    def _unknown(self, tokens: int) -> bytes:
        """Return tokens that no other text has."""
        ids = _FIRST_UNKNOWN + (np.arange(self._fresh, self._fresh + max(tokens, 0)) & (_FIRST_UNKNOWN - 1))
        self._fresh += len(ids)
        return ids.astype(">u4").tobytes()

    @staticmethod
    def _unknown_of(parts: Sequence[Any], tokens: int) -> bytes:
        """Return tokens for pictures and sounds: the same ones give the same tokens."""
        if not tokens:
            return b""
        seed = zlib.crc32(json.dumps([part for part in parts if isinstance(part, dict)], sort_keys=True).encode())
        return as_segment(np.random.default_rng(seed).integers(0, 2**31 - 1, tokens, dtype=np.int32))


def _part_text(part: Any) -> str:
    text = part.get("text") if isinstance(part, dict) else None
    return text if isinstance(text, str) else ""


_BARS = 12
_TIME_BARS = 60
_WAITS = "wait before a turn, s"
_GAPS = "gap between arrivals, s"


@dataclass(slots=True, frozen=True)
class Reuse:
    """Prompt tokens that a cache without limits holds already when they come, over all requests.

    own_tokens: from earlier requests of the same conversation, or of the one it was forked from. other_tokens: from others.
    """

    prompt_tokens: int
    own_tokens: int
    other_tokens: int

    @property
    def share(self) -> float:
        return (self.own_tokens + self.other_tokens) / self.prompt_tokens if self.prompt_tokens else 0.0


@dataclass(slots=True, frozen=True)
class Histogram:
    """bars: how many values are in each of equal parts of the range from the least value to the largest."""

    summary: Summary
    bars: tuple[int, ...]


def _bars(values: list[float], bars: int = _BARS) -> tuple[int, ...]:
    """Return the counts of values in equal parts of their range; in the middle if all are the same."""
    array = np.array(values, dtype=np.float64)
    low, width = float(array.min()), float(array.max() - array.min())
    if not 0 < width < np.inf:
        return tuple(len(values) if bar == bars // 2 else 0 for bar in range(bars))
    places = np.minimum((array - low) / width * bars, bars - 1).astype(np.int64)
    return tuple(np.bincount(places, minlength=bars).tolist())


@dataclass(slots=True, frozen=True)
class WorkloadShape:
    """Distributions, prefix reuse and arrivals of a workload.

    distributions: by what is counted; those without a value are left out. counted_requests: fewer than there are when
    the traversal was cut. assumed_replies: requests of which nothing says how long the reply is.
    """

    distributions: Mapping[str, Histogram]
    reuse: Reuse
    counted_requests: int
    assumed_replies: int
    arrivals_per_s: float | None
    arrival_bars: tuple[int, ...]  # how many arrive in each of equal parts of the time; none without times
    gap_variation: float | None  # standard deviation of the gaps between arrivals over their mean; 1 for Poisson


def shape(workload: Workload, encoder: PromptEncoder, assumed_reply_tokens: int, most_requests: int) -> WorkloadShape:
    """Walk through at most `most_requests` requests."""
    sessions = workload.sessions.values()
    tree = PrefixTree()
    prompts: list[float] = []
    new: list[float] = []
    replies: list[float] = []
    own = other = 0
    for prompt in islice(PromptWriter(workload, encoder, assumed_reply_tokens), most_requests):
        found = min(tree.match(prompt.segments), max(prompt.tokens - 1, 0))  # the last token is always computed
        tree.put(prompt.cached)
        mine = min(found, prompt.continued_tokens)
        own, other = own + mine, other + found - mine
        prompts.append(prompt.tokens)
        new.append(prompt.tokens - found)
        if prompt.reply_tokens is not None:
            replies.append(prompt.reply_tokens)
    fans = [len(branch.children) for s in sessions for turn in s.turns for branch in turn.branches]
    fans += [len(round_.children) for s in sessions for round_ in s.rounds]
    arrivals = sorted(s.arrival_s for s in (workload.sessions[root] for root in workload.roots) if s.arrival_s is not None)
    gaps = [later - earlier for earlier, later in pairwise(arrivals)]
    samples: dict[str, list[float]] = {
        "turns of a session": [len(s.turns) for s in sessions if s.turns],
        "children of a branch": [*map(float, fans)],
        "prompt tokens": prompts,
        "of these not cached": new,
        "reply tokens": replies,
        _WAITS: [turn.delay_s for s in sessions for turn in s.turns[1:]],
        _GAPS: gaps,
    }
    distributions = {
        name: Histogram(summary, _bars(values))
        for name, values in samples.items()
        if (summary := summarize(values)) is not None
    }
    waits = distributions.get(_WAITS)
    if waits is not None and not waits.summary.max:
        del distributions[_WAITS]
    gap = distributions[_GAPS].summary if _GAPS in distributions else None
    regular = gap is not None and gap.avg > 0
    return WorkloadShape(
        distributions=distributions,
        reuse=Reuse(int(sum(prompts)), own, other),
        counted_requests=len(prompts),
        assumed_replies=len(prompts) - len(replies),
        arrivals_per_s=1 / gap.avg if gap is not None and regular else None,
        arrival_bars=_bars(arrivals, _TIME_BARS) if regular else (),
        gap_variation=gap.std / gap.avg if gap is not None and regular else None,
    )
