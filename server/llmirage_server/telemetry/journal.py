"""The journal: what the last requests asked, what they got, and how they ended. GET /llmirage/journal shows it.

An entry is made when a request arrives and filled in when its generation is planned and when it ends; nothing is done for
a token. Every text is cut, and where the entries of responses that have ended take too much together, the oldest go;
whole bodies and replies have a limit of their own.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import re
import shlex
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from sys import getsizeof
from typing import Any, Literal

from llmirage_server.cluster.request import Request
from llmirage_server.replies.reply import Reply

MOST_ENTRIES = 1000
MOST_BYTES = 32 << 20
_ENTRY_BYTES = 1024  # of memory, beside its texts
_PAIR_BYTES = 2 * getsizeof(b"")  # of a header, beside its characters
MOST_CHARACTERS = 4_000  # of each text of an entry
MOST_ITEMS = 16  # tool results and tool calls of an entry
MOST_HEADERS = 64

Outcome = Literal["running", "complete", "client_left", "failed", "cut"]
"""How a response ended. complete: the whole response was sent, a refusal too. client_left: the client closed the connection
first. failed: the server ended the stream with an error. cut: a fault ended it."""

RawHeaders = Sequence[tuple[bytes, bytes]]
REDACTED = "[redacted]"
_FALLBACK = "fallback:"
_OF_CONNECTION = re.compile(r"accept.*|connection|content-(length|encoding)|host|transfer-encoding|user-agent|cookie")
MOST_HELD_BYTES = 32 * 2**20  # bodies and replies; the oldest are dropped
_SECRET = re.compile(r"auth|key|token|secret|cookie|passw|credential|signature")
_OF_CALLER = (b"authorization", b"x-api-key", b"api-key", b"user-agent")
_NO_SECRET = frozenset(("idempotency-key",))  # what tells a retry from a new request


class JournalEntry:
    """One API request. Times are seconds; `number` is 0 until the entry is in a journal.

    at_s: Unix time of the arrival. elapsed_s: from the arrival to the end of the response, on the server's clock.
    ttft_ms, duration_s: from the arrival to the first and to the last token, in the cluster's time; None without one.
    client: address and port of the connection. model: as the request names it; served: the cluster's model.
    user, system, results: the text of the last user message (or prompt), the system prompt, (tool, content) of the tool
    results of this turn. stream: whether the response is one.
    error: the message of a refusal. reply, calls: text and (tool, arguments) of the first choice, as far as generated.
    rule: the script's rule that made the reply, `file:line`. fault: the name of the fault.

    For the verdict: arrived_s: the arrival on the server's clock. digest: equal bodies have equal ones, 0 without a body.
    advice: the headers of a refusal. continues: the numbers of requests whose reply was cut and whose text stands in this
    one as if it were the whole reply. connection: None in process.

    body: empty until it has come; None where the journal has no room for it. said: kind, name and text of the parts of the
    first choice, as far as generated; None without one, or without room.
    """

    __slots__ = (
        "_headers", "_headers_bytes", "_journal", "advice", "arrived_s", "at_s", "body", "cached_tokens", "calls", "client",
        "connection", "continues", "digest", "duration_s", "elapsed_s", "error", "fault", "finish_reason", "method",
        "model", "number", "outcome", "output_tokens", "path", "prompt_tokens", "reply", "results", "rule", "said",
        "served", "status", "stream", "system", "ttft_ms", "user",
    )  # fmt: skip

    def __init__(self, method: str, path: str, client: tuple[str, int] | None, headers: RawHeaders) -> None:
        self.number = 0
        self._journal: Journal | None = None
        self.at_s = time.time()
        self.method = method
        self.path = cut(path)
        self.client = client
        if (size := sum(map(len, itertools.chain.from_iterable(headers)))) > MOST_CHARACTERS:
            headers = [(name[:80], value[:400]) for name, value in headers[:MOST_HEADERS]]
            size = sum(map(len, itertools.chain.from_iterable(headers)))
        self._headers = headers
        self._headers_bytes = size + len(headers) * _PAIR_BYTES
        self.model = self.served = self.user = self.system = self.reply = self.error = self.rule = self.fault = ""
        self.results: tuple[tuple[str, str], ...] = ()
        self.calls: tuple[tuple[str, str], ...] = ()
        self.stream = False
        self.status: int | None = None
        self.outcome: Outcome = "running"
        self.finish_reason: str | None = None
        self.prompt_tokens = self.cached_tokens = self.output_tokens = 0
        self.ttft_ms: float | None = None
        self.duration_s: float | None = None
        self.elapsed_s: float | None = None
        self.arrived_s = 0.0
        self.digest = 0
        self.body: bytes | None = b""
        self.said: tuple[tuple[str, str, str], ...] | None = None
        self.advice: RawHeaders = ()
        self.continues: tuple[int, ...] = ()
        self.connection: ClientConnection | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of the entry, without its body."""
        texts = (self.path, self.model, self.served, self.user, self.system, self.reply, self.error, self.rule, self.fault)
        pairs: Iterable[Sequence[str | bytes]] = (*self.results, *self.calls, *self.advice)
        others = sum(map(getsizeof, texts)) + sum(map(getsizeof, itertools.chain.from_iterable(pairs)))
        return _ENTRY_BYTES + self._headers_bytes + others

    @property
    def caller(self) -> tuple[str | bytes, ...]:
        """The client by address, API key and program. It has secrets in it and is not for showing."""
        given = dict(self._headers)
        return (self.client[0] if self.client else "", *[given.get(name, b"") for name in _OF_CALLER])

    def kept(self, body: bytes) -> bytes:
        """Keep the body, if the journal has room for it, and return it."""
        self.body = body
        if self._journal is not None:
            self._journal.hold(self)
        return body

    def enter(self, number: int, journal: Journal) -> None:
        """Become the entry of that number."""
        self.number, self._journal = number, journal

    @property
    def held_bytes(self) -> int:
        """The memory of body and reply, about."""
        return len(self.body or b"") + sum([getsizeof(text) for _, _, text in self.said or ()])

    def header(self, name: bytes) -> bytes | None:
        """Return a header as it was sent. name: in lower case."""
        return next((value for given, value in self._headers if given == name), None)

    @property
    def headers(self) -> dict[str, str]:
        """The request's headers, names in lower case, without secrets."""
        return dict(map(_header, self._headers))

    def asked(self, served: str, user: str, system: str, tools: Sequence[str], results: Sequence[str], stream: bool) -> None:
        """Note what a request for a reply says. tools, results: names and contents of this turn's tool results."""
        self.served = served
        self.user = cut(user)
        self.system = cut(system)
        if tools:
            self.results = tuple(
                [(cut(tool), cut(result)) for tool, result in zip(tools[:MOST_ITEMS], results, strict=False)]
            )
        self.stream = stream

    def generated(self, requests: Sequence[Request], n: int, reply: Reply) -> None:
        """Note what the cluster did. requests: one for each choice, `n` for each prompt; reply: that of the first."""
        first = requests[0]
        for request in requests[::n]:
            self.prompt_tokens += request.prompt_tokens
            self.cached_tokens += request.cached_tokens
        self.output_tokens = sum([request.produced for request in requests])
        produced = first.produced
        if not math.isnan(first.first_token_s):
            self.ttft_ms = round(1000 * (first.first_token_s - first.arrival_s), 6)
        if produced >= first.output_tokens:
            self.finish_reason = reply.finish_reason
            self.duration_s = max([request.finished_s for request in requests]) - first.arrival_s
        self.said = said_parts(reply, produced)
        self.reply = cut("".join([text for kind, _, text in self.said if kind in ("text", "refusal")]))
        self.calls = tuple([(name, cut(text)) for kind, name, text in self.said if kind.endswith("_call")][:MOST_ITEMS])

    def shown(self) -> dict[str, Any]:
        """Return the entry as JSON data."""
        return {
            "number": self.number,
            "at_s": round(self.at_s, 6),
            "method": self.method,
            "path": self.path,
            "client": f"{self.client[0]}:{self.client[1]}" if self.client else None,
            "headers": self.headers,
            "model": self.model or None,
            "served": self.served or None,
            "stream": self.stream,
            "system": self.system,
            "user": self.user,
            "results": [{"name": name, "content": content} for name, content in self.results],
            "status": self.status,
            "error": self.error or None,
            "outcome": self.outcome,
            "reply": self.reply,
            "calls": [{"name": name, "arguments": written} for name, written in self.calls],
            "finish_reason": self.finish_reason,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "output_tokens": self.output_tokens,
            "ttft_ms": self.ttft_ms,
            "duration_s": self.duration_s,
            "elapsed_s": self.elapsed_s,
            "rule": self.rule or None,
            "source": self.source,
            "fault": self.fault or None,
        }

    @property
    def source(self) -> str | None:
        """The source of the reply; None where there is none."""
        if self.rule and not self.rule.startswith(_FALLBACK):
            return f"script rule {self.rule}" if self.output_tokens else self.rule
        return None if not self.output_tokens else "tool rule" if self.calls else "generated text"

    def shown_whole(self, base_url: str) -> dict[str, Any]:
        """Return the entry with the whole request and reply, as JSON data. base_url: of the server, for the curl command.

        request: the JSON of the body, or its text; None where it is not kept. parts: of the first choice, uncut.
        """
        body = None if self.body is None else self.body.decode("utf-8", "replace")
        request: Any = body
        if body is not None:
            with contextlib.suppress(ValueError, RecursionError):
                request = json.loads(body)
        said = (self.said or ()) if self.output_tokens else ()
        parts = [{"kind": kind, "name": name or None, "text": text} for kind, name, text in said] or None
        return {**self.shown(), "request": request, "parts": parts, "curl": self._curl(base_url, body)}

    def _curl(self, base_url: str, body: str | None) -> str | None:
        """Return the request as a command, keys as $API_KEY; None where the body is not kept, or cannot be sent so."""
        if body is None or self.method == "WS":
            return None
        words = ["curl", *(["-X", self.method] if self.method not in ("GET", "POST") else []), base_url + self.path]
        command = " ".join(map(shlex.quote, words))
        for name, value in self.headers.items():
            if _OF_CONNECTION.fullmatch(name):
                continue
            secret = {"authorization": "Bearer $API_KEY"}.get(name, "$API_KEY")
            command += f' -H "{name}: {secret}"' if value == REDACTED else f" -H {shlex.quote(f'{name}: {value}')}"
        return command + (f" --data-raw {shlex.quote(body)}" if body else "")


def said_parts(reply: Reply, produced: int) -> tuple[tuple[str, str, str], ...]:
    """Return kind, name and text of the parts of a reply, as far as its first `produced` tokens have them."""
    return tuple(
        [
            (part.kind, part.name, "".join(reply.pieces[part.start : min(part.end, produced)]))
            for part in reply.all_parts
            if part.start < produced
        ]
    )


class Journal:
    """The last entries, oldest first, running requests among them.

    observers: called with each entry when its response has ended. last: the number of the newest entry there ever was.
    cleared: the newest that `clear` has dropped. keeps_bodies: all of them, which only a server in a test does.
    """

    def __init__(self, most: int = MOST_ENTRIES, most_bytes: int = MOST_BYTES) -> None:
        self.entries: deque[JournalEntry] = deque()
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0  # of entries that have ended, which have grown to their size
        self._sizes: dict[int, int] = {}  # of these, by number
        self.observers: list[Callable[[JournalEntry], None]] = []
        self.keeps_bodies = False
        self._numbers = itertools.count(1)
        self._held: dict[int, tuple[JournalEntry, int]] = {}  # with a body or a reply, by number, oldest first
        self._held_bytes = 0
        self.last = self.cleared = 0

    def begin(self, entry: JournalEntry) -> None:
        self.last = next(self._numbers)
        entry.enter(self.last, self)
        self.entries.append(entry)
        if len(self.entries) > self._most:
            self._drop_oldest()

    def end(self, entry: JournalEntry, status: int | None, outcome: Outcome, elapsed_s: float) -> None:
        """Note how a response ended. status None: none was sent."""
        entry.status = status
        entry.outcome = outcome
        entry.elapsed_s = elapsed_s
        if self.entries and self.entries[0].number <= entry.number:
            self._bytes -= self._sizes.get(entry.number, 0)
            size = self._sizes[entry.number] = entry.size_bytes
            self._bytes += size
            while self._bytes > self._most_bytes and self.entries[0] is not entry:
                self._drop_oldest()
            self.hold(entry)
        for observer in self.observers:
            observer(entry)

    def hold(self, entry: JournalEntry) -> None:
        """Keep the body and the reply of an entry, and drop those of the oldest where there is no room."""
        if self.keeps_bodies:
            return
        self._held_bytes -= self._held.pop(entry.number, (entry, 0))[1]
        if (held := entry.held_bytes) > MOST_HELD_BYTES // 4:  # it would cost many others theirs
            entry.body = entry.said = None
        elif held:
            self._held[entry.number] = entry, held
            self._held_bytes += held
        while self._held_bytes > MOST_HELD_BYTES:
            oldest, held = self._held.pop(next(iter(self._held)))
            self._held_bytes -= held
            oldest.body = oldest.said = None

    def numbered(self, number: int) -> JournalEntry | None:
        """Return the entry of that number, None if it is not there any more."""
        return next((entry for entry in self.entries if entry.number == number), None)

    def clear(self) -> None:
        """Forget all entries; numbers go on."""
        self._held.clear()
        self._held_bytes = 0
        self.cleared = self.last
        self.entries.clear()
        self._sizes.clear()
        self._bytes = 0

    def bytes_kept(self) -> int:
        """Return what the entries take whose responses have ended."""
        return self._bytes + self._held_bytes

    def _drop_oldest(self) -> None:
        number = self.entries.popleft().number
        self._bytes -= self._sizes.pop(number, 0)
        if number in self._held:
            self._held_bytes -= self._held.pop(number)[1]

    def found(self, wanted: Mapping[str, str], since: int | None, limit: int) -> list[JournalEntry]:
        """Entries whose fields have these values: the first `limit` after number `since`, or the last `limit`; oldest first.

        wanted: texts by names of FILTERS; for `path`, `rule` and `fault` a part of the value will do.
        """
        after: Iterable[JournalEntry] = [entry for entry in self.entries if since is None or entry.number > since]
        matching = [entry for entry in after if all(_fits(entry, name, value) for name, value in wanted.items())]
        return matching[:limit] if since is not None else matching[max(0, len(matching) - limit) :]


FILTERS = ("method", "path", "model", "status", "outcome", "rule", "fault")
_BY_PART = ("path", "rule", "fault")


def cut(text: str) -> str:
    """Return a text of at most MOST_CHARACTERS; the end of a longer one says how long it was."""
    if len(text) <= MOST_CHARACTERS:
        return text
    return f"{text[:MOST_CHARACTERS]}… ({len(text):,} characters)"


def _fits(entry: JournalEntry, name: str, wanted: str) -> bool:
    value = getattr(entry, name)
    return wanted in value if name in _BY_PART else wanted == str(value)


def _header(header: tuple[bytes, bytes]) -> tuple[str, str]:
    name, value = header[0].decode("latin-1").lower(), header[1]
    if name not in _NO_SECRET and _SECRET.search(name):
        return name, REDACTED
    return name, value.decode("latin-1")


def access_line(entry: JournalEntry) -> str:
    """`client "method path" status`, then what is known of: model, tokens, TTFT, duration, how it ended, rule, fault."""
    client = f"{entry.client[0]}:{entry.client[1]}" if entry.client else "-"
    parts = [f'{client} "{entry.method} {_plain(entry.path)}" {entry.status or "-"}']
    if entry.model:
        parts.append(f"model={_plain(entry.model)}")
    if entry.prompt_tokens:
        parts.append(f"in={entry.prompt_tokens} cached={entry.cached_tokens} out={entry.output_tokens}")
    if entry.ttft_ms is not None:
        parts.append(f"ttft={entry.ttft_ms:.1f}ms")
    if entry.duration_s is not None:
        parts.append(f"duration={entry.duration_s:.3f}s")
    if entry.outcome != "complete":
        parts.append(f"ended={entry.outcome}")
    parts += [f"{name}={_plain(text)}" for name, text in (("rule", entry.rule), ("fault", entry.fault)) if text]
    return " ".join(parts)


def _plain(text: str) -> str:
    """Return a client's text on one line: control characters, quotes and spaces as escapes."""
    if text.isprintable() and text.isascii() and '"' not in text and " " not in text:
        return text
    return text.encode("unicode_escape").decode("ascii").replace('"', "%22").replace(" ", "%20")


CONNECTION = "llmirage.connection"  # key in a scope's state


class ClientConnection:
    """Times are seconds on the server's clock.

    opened_s, closed_s: when it was opened and closed; closed_s None: it is open. unused_since_s: when its last response was
    complete; None while a request is under way, and before the first.
    """

    __slots__ = ("_blocked_s", "_blocked_since_s", "closed_s", "opened_s", "unused_since_s")

    def __init__(self, opened_s: float) -> None:
        self.opened_s = opened_s
        self.closed_s: float | None = None
        self.unused_since_s: float | None = None
        self._blocked_since_s: float | None = None
        self._blocked_s = 0.0

    def blocked(self, at_s: float) -> None:
        """Note that the buffers are full, because the client does not read, and the server has to wait."""
        self._blocked_since_s = at_s

    def unblocked(self, at_s: float) -> None:
        """Note that the buffers take bytes again."""
        self._blocked_s = self.longest_block_s(at_s)
        self._blocked_since_s = None

    def closed(self, at_s: float) -> None:
        self.closed_s = at_s
        self.unblocked(at_s)

    def longest_block_s(self, now_s: float) -> float:
        """Return the longest time for which nothing could be sent."""
        since_s = self._blocked_since_s
        return self._blocked_s if since_s is None else max(self._blocked_s, now_s - since_s)
